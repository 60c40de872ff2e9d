"""A run's report: as facts for people, as JSON, and as a picture."""

from __future__ import annotations

from html import escape
from typing import Any

from .run import Report

#: Findings that are told; the rest is counted.
TOLD = 20


def as_json(report: Report) -> dict[str, Any]:
    """The report, without the history that only the picture needs."""
    verdict = report.verdict
    assert verdict is not None
    return {
        "seed": report.seed,
        "minutes": report.minutes,
        "on_uncertain": report.on_uncertain,
        "ok": is_good(report),
        "notifications": report.notifications,
        "deliveries": verdict.states,
        "mails_received": report.mails,
        "lost": verdict.lost,
        "dispatched_twice": verdict.dispatched_twice,
        "received_more_than_once": verdict.copies,
        "unexplained": verdict.unexplained,
        "processes_started": report.starts,
        "done": dict(sorted(report.done.items(), key=lambda each: -each[1])),
        "all_final": report.settled,
        "final_after_seconds": report.settled_after,
        "findings": [*verdict.findings[:TOLD], *_rest(verdict.findings)],
    }


def is_good(report: Report) -> bool:
    """Whether the promise was kept, and all came to its end in time."""
    return report.verdict is not None and report.verdict.holds and report.settled


def as_facts(report: Report) -> list[tuple[str, str]]:
    """The report as pairs of a name and a text."""
    told = as_json(report)
    states = ", ".join(f"{number:,} {state}" for state, number in told["deliveries"].items())
    return [
        ("Seed", str(report.seed)),
        ("Faults for", f"{report.minutes:g} min"),
        ("Done to it", ", ".join(f"{number:,} × {what}" for what, number in told["done"].items())),
        ("Processes started", f"{report.starts:,}"),
        ("Notifications", f"{report.notifications:,}"),
        ("Deliveries", states),
        ("Mails received", f"{report.mails:,}"),
        ("Lost", f"{told['lost']:,}"),
        ("Dispatched twice", f"{told['dispatched_twice']:,}"),
        ("Received more than once", f"{told['received_more_than_once']:,}"),
        ("Of these unexplained", f"{told['unexplained']:,}"),
        ("All final", f"after {report.settled_after:g} s of peace" if report.settled else "no"),
    ]


def _rest(findings: tuple[str, ...]) -> list[str]:
    return [f"and {len(findings) - TOLD:,} more"] if len(findings) > TOLD else []


WIDTH, LEFT, RIGHT = 960, 170, 20
ROW, CHART = 18, 180


def as_svg(report: Report) -> str:
    """A picture: what was written and received over time, and below it what was done and when."""
    kinds = sorted({kind for _, kind in report.events})
    seconds = max([at for at, _, _ in report.history] + [report.minutes * 60, 1.0])
    most = max([max(written, taken) for _, written, taken in report.history] + [1])
    height = CHART + 60 + ROW * len(kinds) + 40

    def x(at: float) -> float:
        return LEFT + at / seconds * (WIDTH - LEFT - RIGHT)

    def y(count: int) -> float:
        return 30 + CHART - count / most * CHART

    def line(points: list[tuple[float, int]], colour: str) -> str:
        path = " ".join(f"{x(at):.1f},{y(count):.1f}" for at, count in points)
        return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'

    written = [(at, count) for at, count, _ in report.history]
    taken = [(at, count) for at, _, count in report.history]
    peace = x(report.minutes * 60)
    title = (
        f"Seed {report.seed}: {report.notifications:,} notifications, {report.mails:,} mails "
        f"received; after {report.minutes:g} minutes there is peace"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}">',
        "<style>text { font: 12px sans-serif }</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<path d="M{peace:.1f} 30H{WIDTH - RIGHT}V{height - 40}H{peace:.1f}" fill="#e8f5e9"/>',
        f'<text x="{LEFT}" y="18">{escape(title)}</text>',
        f'<text x="{LEFT - 8}" y="36" text-anchor="end">{most:,}</text>',
        f'<text x="{LEFT - 8}" y="{30 + CHART}" text-anchor="end">0</text>',
        f'<path d="M{LEFT} 30V{30 + CHART}H{WIDTH - RIGHT}" fill="none" stroke="#999"/>',
        line(written, "#1f77b4"),
        line(taken, "#2ca02c"),
        f'<text x="{LEFT + 10}" y="46" fill="#1f77b4">notifications written</text>',
        f'<text x="{LEFT + 10}" y="62" fill="#2ca02c">mails received</text>',
    ]
    for number, kind in enumerate(kinds):
        middle = CHART + 60 + ROW * number
        parts.append(
            f'<text x="{LEFT - 8}" y="{middle + 4}" text-anchor="end">{escape(kind)}</text>'
        )
        ticks = "".join(
            f"M{x(at):.1f} {middle - 6}v12" for at, each in report.events if each == kind
        )
        parts.append(f'<path d="{ticks}" stroke="#c62828" stroke-width="1.2"/>')
    base = height - 30
    parts += [
        f'<text x="{x(minute * 60):.1f}" y="{base + 14}" text-anchor="middle">{minute}</text>'
        for minute in range(int(seconds // 60) + 1)
    ]
    parts.append(
        f'<text x="{WIDTH - RIGHT}" y="{base + 28}" text-anchor="end">minutes since the start; '
        "green: peace</text></svg>"
    )
    return "\n".join(parts) + "\n"
