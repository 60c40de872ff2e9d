"""`pipeline stack`: one stacking pass now."""

from __future__ import annotations

import time
from contextlib import closing

import click

from .opening import opened
from .output import count, json_option, print_json, stderr


@click.command(short_help="Stack everything that waits, now.")
@click.option("--urgent", is_flag=True, help="Only stacks that have an urgent notification.")
@json_option
def stack(urgent: bool, as_json: bool) -> None:
    """Stack everything that waits, now, and call for senders.

    What the next tick would do. Harmless beside it and beside others: no notification is claimed
    twice. Each chunk is committed on its own, so an interrupted pass has done what it had said.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from pipeline.database import query
    from pipeline.doorbells import Doorbells
    from pipeline.process import make_broker
    from pipeline.stacking import Pass, run_pass

    with opened() as (settings, connection):
        with connection.cursor() as cursor:
            cursor.execute(query("status_notifications"))
            row = cursor.fetchone()
        assert row is not None
        console = stderr()
        progress = Progress(
            TextColumn("Stacking"), BarColumn(), MofNCompleteColumn(),
            console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        started = time.monotonic()
        with closing(make_broker(settings)) as broker, progress:
            task = progress.add_task("", total=row[1] if urgent else row[0])

            def on_chunk(done: Pass) -> None:
                progress.update(task, completed=done.claimed_count)

            done = run_pass(
                connection,
                settings,
                Doorbells(broker, senders=settings.senders),
                urgent_only=urgent,
                on_chunk=on_chunk,
            )
    if as_json:
        print_json(
            {
                "claimed": done.claimed_count,
                "deliveries": done.created_count,
                "joined": done.joined_count,
                "messages": done.message_count,
                "seconds": round(time.monotonic() - started, 3),
            }
        )
        return
    if not done.claimed_count:
        click.echo("Nothing was waiting.")
        return
    click.echo(
        f"Claimed {count(done.claimed_count, 'notification')}: "
        f"{count(done.created_count, 'new delivery', 'new deliveries')}, "
        f"{done.joined_count:,} joined that were waiting; "
        f"{count(done.message_count, 'Dramatiq message')} to call for senders."
    )
