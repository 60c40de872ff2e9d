"""What commands print: tables and JSON to stdout, talk to stderr, plain where no person looks."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

#: A column is not cut to less than this.
NARROWEST = 12

#: Colours of the states of a delivery and of the levels of a finding.
STYLES = {
    "sent": "green",
    "ok": "green",
    "queued": "cyan",
    "sending": "cyan",
    "transmitting": "cyan",
    "deferred": "yellow",
    "uncertain": "yellow",
    "held": "yellow",
    "warn": "yellow",
    "failed": "red",
    "fail": "red",
    "abandoned": "yellow",
    "suppressed": "dim",
    "skipped": "dim",
    "cancelled": "dim",
}

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def stdout() -> Console:
    """The console for what was asked for. Colour only on a terminal, and not with NO_COLOR."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def stderr() -> Console:
    """The console for talk and progress."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def say(text: str) -> None:
    """Tell the person what is being done."""
    click.echo(text, err=True)


def print_json(value: Any) -> None:
    """Print one JSON value. Times are ISO 8601 in UTC; everything is ASCII."""
    click.echo(json.dumps(value, indent=2, default=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    raise TypeError(f"not for JSON: {value!r}")


def print_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    cut: Sequence[str] = (),
    drop: Sequence[str] = (),
) -> None:
    """Print rows in columns, a line each. Only a terminal that is too narrow gets less than all.

    A cell that is one of the known states or levels gets its colour.

    Parameters:
      cut: Columns that may be cut off, with an ellipsis.
      drop: Columns that are left out where that is not enough, these first.
    """
    from rich.cells import cell_len, set_cell_size
    from rich.text import Text

    console = stdout()
    width = console.width if console.is_terminal else sys.maxsize
    cells = [list(headers), *([clean(cell) for cell in row] for row in rows)]
    widths = {
        name: max(cell_len(row[column]) for row in cells) for column, name in enumerate(headers)
    }
    shown = _fitting(widths, width, cut, drop)
    for number, row in enumerate(cells):
        line = Text(style="" if number else "bold")
        for column, name in enumerate(headers):
            if name in shown:
                cell = row[column]
                if cell_len(cell) > shown[name]:
                    cell = set_cell_size(cell, shown[name] - 1) + "…"
                is_number = bool(number) and isinstance(rows[number - 1][column], int)
                space = " " * (shown[name] - cell_len(cell))
                line.append(space + cell if is_number else cell + space, STYLES.get(cell, ""))
                line.append("  ")
        line.rstrip()
        console.print(line, soft_wrap=True)


def _fitting(
    widths: Mapping[str, int], width: int, cut: Sequence[str], drop: Sequence[str]
) -> dict[str, int]:
    """Widths of columns that fit side by side, two spaces between them."""
    for dropped in range(len(drop) + 1):
        shown = {name: each for name, each in widths.items() if name not in drop[:dropped]}
        excess = sum(shown.values()) + 2 * (len(shown) - 1) - width
        # From the widest first, so that what is short stays whole.
        while excess > 0:
            name = max((name for name in shown if name in cut), key=shown.__getitem__, default="")
            if not name or shown[name] <= NARROWEST:
                break
            shown[name] -= 1
            excess -= 1
        if excess <= 0:
            break
    return shown


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print names and values, a line each; values that are long go on below themselves.

    But not addresses and paths, which would not be whole any more for those who copy them.
    """
    console = stdout()
    width = max((len(name) for name, _ in facts), default=0)
    if not console.is_terminal:
        for name, value in facts:
            click.echo(f"{name.ljust(width)}  {value}".rstrip())
        return
    from rich.table import Table
    from rich.text import Text

    for name, value in facts:
        label = Text(name.ljust(width), style="bold")
        if " " not in value:
            console.print(Text.assemble(label, "  ", value), soft_wrap=True)
            continue
        grid = Table.grid(padding=(0, 2))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(label, Text(value))
        console.print(grid)


def clean(value: object, *, lines: bool = False) -> str:
    """A value as text that can't do anything to a terminal; nothing for None.

    Parameters:
      lines: Keep line ends and tabs.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    text = moment(value) if isinstance(value, datetime) else str(value)
    kept = "\n\t" if lines else ""
    return "".join(
        each if each in kept or unicodedata.category(each) not in _UNFIT else " " for each in text
    )


#: Unicode categories: control, format, surrogate, line and paragraph separators.
_UNFIT = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def moment(value: datetime) -> str:
    """A time as people read it, in this machine's time zone."""
    return value.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def span(value: timedelta | float | None, units: int = 2) -> str:
    """A length of time in its largest units: `2 h 5 min`; nothing for None."""
    if value is None:
        return ""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    parts = []
    rest = int(seconds)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        amount, rest = divmod(rest, size)
        if amount:
            parts.append(f"{amount} {unit}")
    return " ".join(parts[:units])


def count(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun: `1 delivery`, `2,000 deliveries`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
