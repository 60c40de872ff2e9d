"""Settings: can they be used, and does anything read what is set?"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Literal

from pipeline.settings import Settings

Level = Literal["ok", "warn", "fail"]

#: Variables that are read elsewhere than in `Settings`.
OTHERS = ("PIPELINE_SETTINGS_FILE", "PIPELINE_DATA_DIR")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
      level: `fail`: it doesn't work like this; `warn`: somebody should look at it; `ok`.
      advice: What to do; None when it is `ok`.
    """

    name: str
    level: Level
    text: str
    advice: str | None = None


def check_variables(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Variables that begin with `PIPELINE_` and that nothing reads."""
    known = [f"PIPELINE_{setting.name.upper()}" for setting in fields(Settings)] + [*OTHERS]
    for name in sorted(environ):
        if name.startswith("PIPELINE_") and name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            yield Finding(
                "settings",
                "warn",
                f"{name} is set, and nothing reads it",
                f"Perhaps {close[0]} is meant." if close else "Unset it if it is meant for this.",
            )
