"""What a benchmark finds: samples with their spread, and findings that a person can read."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Sample:
    """The same measurement, repeated."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    def percentile(self, share: float) -> float:
        """The smallest value that at least this share (0 to 1) of all is not above."""
        ordered = sorted(self.values)
        return ordered[
            min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))
        ]

    def told(self, unit: str = "", digits: int = 2) -> str:
        """The median, and the lowest and highest value."""
        told = f"{number(self.median, digits)}{unit}"
        if len(self.values) > 1:
            told += f" ({number(self.low, digits)}–{number(self.high, digits)})"
        return told


def number(value: float, digits: int = 2) -> str:
    """A number as people write it: thousands apart, and no more digits than say something."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{max(digits - 1, 0) if value >= 100 else digits}f}"


@dataclass(frozen=True, slots=True)
class Lines:
    """A plot of series over a common x-axis.

    Attributes:
      series: Name, points.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    series: dict[str, list[tuple[float, float]]]
    log_x: bool = False


@dataclass(frozen=True, slots=True)
class Bars:
    """A plot of values beside one another.

    Attributes:
      bars: Label, value, lowest, highest.
    """

    name: str
    title: str
    unit: str
    bars: list[tuple[str, float, float, float]]


@dataclass(slots=True)
class Finding:
    """One figure.

    Attributes:
      limit: What is to be reached.
      found: What was found, in a sentence.
      reached: None where there is no limit.
      rows: The table, as text; the numbers themselves are in `numbers`.
      about: How it was measured, and what holds it back.
    """

    name: str
    title: str
    limit: str
    found: str
    reached: bool | None
    columns: list[str]
    rows: list[list[str]]
    about: str
    numbers: dict[str, Any] = field(default_factory=dict)
    plots: list[Lines | Bars] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Everything but the plots."""
        content = asdict(self)
        content["plots"] = [plot.name for plot in self.plots]
        return content


@dataclass(slots=True)
class Watch:
    """Seconds that a block took."""

    seconds: float = 0.0


@contextmanager
def watch() -> Iterator[Watch]:
    """Time a block."""
    taken = Watch()
    started = time.perf_counter()
    yield taken
    taken.seconds = time.perf_counter() - started


def sample(values: Sequence[float]) -> Sample:
    """A sample of these values."""
    return Sample(tuple(values))
