"""`pipeline status`: where everything stands."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from .opening import opened
from .output import STYLES, clean, count, json_option, moment, print_json, span, stdout

if TYPE_CHECKING:
    from pipeline.status import ProcessSeen, RelayStatus, Status


@click.command(short_help="Show where everything stands.")
@json_option
def status(as_json: bool) -> None:
    """Show what waits, what is under way, who is there, and how the relay is."""
    from pipeline.status import read_status

    with opened() as (settings, connection):
        now = read_status(connection, settings)
    if as_json:
        print_json(_for_programs(now))
    else:
        _print(now)


def _for_programs(now: Status) -> dict[str, Any]:
    """Durations in seconds, under names that say so."""
    value = asdict(now)
    notifications = value["notifications"]
    notifications["oldest_age_seconds"] = notifications.pop("oldest_age")
    value["due_age_seconds"] = value.pop("due_age")
    value["doorbells"] = {
        bell.pop("actor"): {"waiting": bell["waiting"], "answering": bell["answering"]}
        for bell in value["doorbells"]
    }
    return value


def _print(now: Status) -> None:
    from rich.table import Table
    from rich.text import Text

    console = stdout()
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, lines in _sections(now):
        for number, line in enumerate(lines):
            label = "" if number else name
            if console.is_terminal:
                grid.add_row(Text(label, style="bold"), line)
            else:
                click.echo(f"{label:<14}{line.plain}".rstrip())
    if console.is_terminal:
        console.print(grid)


def _sections(now: Status) -> list[tuple[str, list[Any]]]:
    from rich.text import Text

    return [
        ("Notifications", [Text(_notifications(now))]),
        ("Deliveries", _deliveries(now)),
        ("Queue", [Text(_queue(now))]),
        ("Senders", [Text(_senders(now))]),
        ("Relay", [_relay(relay, now) for relay in now.relays]),
        ("Schedulers", _seen(now.schedulers, now, "none seen: nothing is stacked or recovered")),
        ("Workers", _seen(now.workers, now, "none seen: nothing is sent")),
        ("Last tick", [Text(_tick(now))]),
    ]


def _notifications(now: Status) -> str:
    waiting = now.notifications
    if not waiting.pending:
        return "none waiting"
    urgent = f", {waiting.urgent:,} urgent" if waiting.urgent else ""
    return f"{waiting.pending:,} waiting{urgent}, the oldest for {span(waiting.oldest_age)}"


def _deliveries(now: Status) -> list[Any]:
    from rich.text import Text

    known = Text()
    for state, number in now.deliveries.items():
        if number:
            known.append(f"{', ' if known else ''}{number:,} ")
            known.append(state, style=STYLES.get(state, ""))
    lines = [known or Text("none")]
    if now.due_age is not None:
        lines.append(Text(f"the oldest due has waited for a sender for {span(now.due_age)}"))
    return lines


def _queue(now: Status) -> str:
    parts = [f"{number:,} {state}" for state, number in now.queue.items() if number]
    parts += [
        f"{bell.actor}: {bell.waiting:,} unanswered, {bell.answering:,} being answered"
        for bell in now.doorbells
    ]
    return f"{'; '.join(parts) or 'empty'} ({now.queue_table})"


def _senders(now: Status) -> str:
    text = f"{len(now.senders)} of {now.sender_limit} at work"
    if now.senders:
        text += ": " + ", ".join(clean(sender.worker) for sender in now.senders)
    return text


def _relay(relay: RelayStatus, now: Status) -> Any:
    from rich.text import Text

    text = Text(clean(relay.name))
    if not relay.is_configured:
        text.append(" (not the one that is set)", style="dim")
    if not relay.is_in_trouble:
        text.append(" no trouble known", style="green")
        return text
    text.append(f" in trouble, {count(relay.failure_count, 'time')} in a row", style="red")
    if relay.retry_at is not None:
        wait = (relay.retry_at - now.at).total_seconds()
        text.append(f", tried again {f'in {span(wait)}' if wait > 0 else 'now'}")
    # The reason holds the code already where the server gave one.
    text.append(f": {clean(relay.reason)}")
    return text


def _seen(processes: list[ProcessSeen], now: Status, none: str) -> list[Any]:
    from rich.text import Text

    if not processes:
        return [Text(none, style="yellow")]
    return [
        Text(
            f"{clean(process.name)} for {span(now.at - process.started_at)}, "
            f"seen {span(now.at - process.seen_at)} ago"
        )
        for process in processes
    ]


def _tick(now: Status) -> str:
    if now.last_tick_at is None:
        return "none yet"
    over = "stacked" if now.last_tick_is_stacked else "not stacked yet"
    return f"{moment(now.last_tick_at)}, {over}"
