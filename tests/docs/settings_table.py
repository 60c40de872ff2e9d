"""The table of settings in docs/operating.md, from the settings themselves.

python -m tests.docs.settings_table --check     exit status 1 if the page says something else
python -m tests.docs.settings_table --write     write it into the page
"""

from __future__ import annotations

import sys
from dataclasses import fields
from datetime import timedelta

from pipeline import Settings
from pipeline.settings import UNITS
from tests.support.shell import ROOT

PAGE = ROOT / "docs" / "operating.md"
BEGIN, END = "<!-- settings -->\n", "<!-- end of settings -->\n"


def table() -> str:
    """Every setting with its default and what it is, in Markdown."""
    rows = ["| variable | default | |", "|---|---|---|"]
    for setting in fields(Settings):
        variable = f"PIPELINE_{setting.name.upper()}"
        default = _written(setting.default)
        rows.append(f"| `{variable}` | {default} | {setting.metadata['about']} |")
    return "\n".join(rows) + "\n"


def _written(default: object) -> str:
    """A default as one would write it: `5m`, `500ms`, `dramatiq`; nothing for none."""
    if default in (None, ""):
        return ""
    if not isinstance(default, timedelta):
        return f"`{default}`"
    seconds = default.total_seconds()
    for unit in sorted(UNITS, key=lambda name: -UNITS[name]):
        if seconds % UNITS[unit] == 0:
            return f"`{seconds / UNITS[unit]:.0f}{unit}`"
    raise ValueError(f"no unit writes {default}")


def page_with_table() -> str:
    """The page as it should be."""
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, f"{PAGE.name} has no line {BEGIN.strip()}"
    assert end, f"{PAGE.name} has no line {END.strip()}"
    return f"{before}{begin}\n{table()}\n{end}{after}"


def main(arguments: list[str]) -> int:
    """Check or write; the exit status."""
    if arguments == ["--write"]:
        PAGE.write_text(page_with_table(), encoding="utf-8")
        return 0
    if arguments != ["--check"]:
        print(__doc__)  # noqa: T201
        return 2
    if PAGE.read_text(encoding="utf-8") == page_with_table():
        return 0
    print(f"{PAGE} has another table of settings: write it with --write.")  # noqa: T201
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
