"""Plots as SVG, written by hand: no more than axes, lines and bars, and nothing to install."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from benchmarks.measuring import Bars, Lines, number

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 76, 24, 48, 52
FONT = 'font-family="system-ui, sans-serif" font-size="12" fill="#1a202c"'
COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b83280", "#4a5568")


def svg(plot: Lines | Bars) -> str:
    """The plot as a picture of its own."""
    body = _lines(plot) if isinstance(plot, Lines) else _bars(plot)
    height = HEIGHT if isinstance(plot, Lines) else _bars_height(plot)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {FONT}>',
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
            _text(LEFT, 24, plot.title, size=15, weight="600"),
            *body,
            "</svg>",
            "",
        ]
    )


def _lines(plot: Lines) -> list[str]:
    points = [point for series in plot.series.values() for point in series]
    top = _nice(max(y for _, y in points))
    xs = sorted({x for x, _ in points})
    low, high = _scaled(xs[0], plot.log_x), _scaled(xs[-1], plot.log_x)

    def x_at(x: float) -> float:
        share = (_scaled(x, plot.log_x) - low) / ((high - low) or 1)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y_at(y: float) -> float:
        return HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM)

    drawn = []
    for step in range(6):
        value = top * step / 5
        drawn.append(_rule(LEFT, y_at(value), WIDTH - RIGHT, y_at(value)))
        drawn.append(_text(LEFT - 8, y_at(value) + 4, number(value, 1), anchor="end"))
    ticks = xs if len(xs) <= 10 else [xs[0] + (xs[-1] - xs[0]) * n / 6 for n in range(7)]
    drawn += [_text(x_at(x), HEIGHT - BOTTOM + 18, number(x, 0), anchor="middle") for x in ticks]
    drawn.append(_text((LEFT + WIDTH) / 2, HEIGHT - 12, plot.x_label, anchor="middle"))
    drawn.append(_text(LEFT, TOP - 8, plot.y_label, colour="#4a5568"))
    legend = WIDTH - RIGHT
    for index, (name, series) in reversed(list(enumerate(plot.series.items()))):
        colour = COLOURS[index % len(COLOURS)]
        path = " ".join(f"{x_at(x):.1f},{y_at(y):.1f}" for x, y in series)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if len(series) <= 20:
            drawn += [
                f'<circle cx="{x_at(x):.1f}" cy="{y_at(y):.1f}" r="3" fill="{colour}"/>'
                for x, y in series
            ]
        drawn.append(_text(legend, TOP - 8, name, anchor="end", colour=colour, weight="600"))
        legend -= 8 * len(name) + 16
    return drawn


def _bars_height(plot: Bars) -> int:
    return TOP + 28 * len(plot.bars) + 20


def _bars(plot: Bars) -> list[str]:
    left = min(300, 16 + max(7 * len(label) for label, *_ in plot.bars))
    top = _nice(max(high for *_, high in plot.bars))
    room = WIDTH - left - 170
    drawn = []
    for index, (label, value, low, high) in enumerate(plot.bars):
        y = TOP + 28 * index
        length = value / top * room
        drawn.append(_text(left - 8, y + 14, label, anchor="end"))
        drawn.append(
            f'<rect x="{left}" y="{y}" width="{length:.1f}" height="20" '
            f'fill="{COLOURS[index % len(COLOURS)]}"/>'
        )
        if high > low:
            start, end = left + low / top * room, left + high / top * room
            drawn.append(_rule(start, y + 10, end, y + 10, colour="#1a202c"))
        end = left + max(length, high / top * room)
        drawn.append(_text(end + 8, y + 14, f"{number(value)} {plot.unit}"))
    return drawn


def _scaled(value: float, log: bool) -> float:
    return math.log10(max(value, 1e-9)) if log else value


def _nice(value: float) -> float:
    """The next round number."""
    if value <= 0:
        return 1.0
    magnitude: float = 10.0 ** math.floor(math.log10(value))
    steps: Sequence[float] = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
    return next(step * magnitude for step in steps if step * magnitude >= value * 0.999)


def _rule(x1: float, y1: float, x2: float, y2: float, colour: str = "#e2e8f0") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    size: int = 12,
    weight: str = "400",
    colour: str = "#1a202c",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'font-weight="{weight}" fill="{colour}">{escape(text)}</text>'
    )
