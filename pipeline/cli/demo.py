"""`pipeline demo`: the whole pipeline on this machine, with made-up activity."""

from __future__ import annotations

import os
import secrets
import tempfile
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .errors import Refusal
from .output import count, json_option, print_facts, print_json, say, span, stderr
from .signals import stop_on_signals

if TYPE_CHECKING:
    from pipeline.demonstration.live import Counts
    from pipeline.demonstration.outcome import Outcome

#: Settings that would send the demo elsewhere, and that it therefore leaves alone.
NOT_USED = ("PIPELINE_DATABASE_URL", "PIPELINE_SMTP_URL", "PIPELINE_SETTINGS_FILE")

PORT = click.IntRange(min=1, max=65535)


@click.command(short_help="See it all run, with made-up activity.")
@click.option("--once", is_flag=True, help="Make so many notifications, check, and end.")
@click.option(
    "--notifications",
    type=click.IntRange(min=1, max=10_000_000),
    default=200,
    show_default=True,
    help="How many; with --once.",
)
@click.option("--timeout", metavar="DURATION", help="How long they may take; with --once.")
@click.option("--seed", type=int, help="Make the same things happen again.  [default: random]")
@click.option(
    "--rate",
    type=click.FloatRange(min=0.1, max=1000),
    default=2.0,
    show_default=True,
    help="Things that happen in a second; without --once.",
)
@click.option("--http-port", type=PORT, help="Of the inbox's page.  [default: 8025, or any]")
@click.option("--smtp-port", type=PORT, help="Of the inbox.  [default: 1025, or any]")
@json_option
@click.pass_context
def demo(
    context: click.Context,
    once: bool,
    notifications: int,
    timeout: str | None,
    seed: int | None,
    rate: float,
    http_port: int | None,
    smtp_port: int | None,
    as_json: bool,
) -> None:
    """Run everything on this machine: an embedded Postgres, an inbox, a scheduler and a worker.

    People and what they do are made up; their mail goes to the inbox and nowhere else. Ctrl-C stops
    all of it. `pipeline status` in another terminal shows the demo's database, which is kept.

    With --once it makes so many notifications, waits until every one is final, and exits with 0
    only if none was lost and none came twice. Its database is its own, and removed.
    """
    _refuse_mixtures(context, once)
    for name in NOT_USED:
        if os.environ.get(name):
            say(f"{name} is set; the demo does not touch that and uses its own.")
    seed = secrets.randbelow(1_000_000) if seed is None else seed
    stop = stop_on_signals()
    ports = {"http_port": http_port, "smtp_port": smtp_port}
    from pipeline.demonstration.services import DemoError

    try:
        if once:
            _once(notifications, _seconds(timeout, notifications), seed, stop, ports, as_json)
        else:
            _live(rate, seed, stop, ports)
    except DemoError as error:
        raise Refusal(f"The demo can't go on: {error}") from None


def _refuse_mixtures(context: click.Context, once: bool) -> None:
    given = {
        name
        for name in context.params
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    }
    for name in ("notifications", "timeout", "as_json") if not once else ("rate",):
        if name in given:
            option = f"--{name.removeprefix('as_')}"
            raise click.UsageError(f"{option} goes {'without' if once else 'with'} --once.")


def _seconds(timeout: str | None, notifications: int) -> float:
    from pipeline.settings import duration

    if timeout is None:
        return 120 + notifications / 50
    try:
        return duration(timeout).total_seconds()
    except ValueError as error:
        raise click.BadParameter(f"{timeout!r} {error}", param_hint="--timeout") from None


def _once(
    notifications: int,
    timeout: float,
    seed: int,
    stop: threading.Event,
    ports: dict[str, int | None],
    as_json: bool,
) -> None:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from pipeline.demonstration.installation import Installation
    from pipeline.demonstration.once import Stopped, run_once

    folder = Path(tempfile.gettempdir()).absolute() / f"pipeline-demo-{secrets.token_hex(6)}"
    console = stderr()
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=console, disable=not console.is_terminal,
    )  # fmt: skip
    say("Starting Postgres, inbox, scheduler and worker.")
    installation = Installation(
        folder,
        is_temporary=True,
        keep_count=notifications + 1000,
        smtp_port=ports["smtp_port"] or 0,
        http_port=ports["http_port"] or 0,
    )
    with installation, progress:
        say(f"Making {count(notifications, 'notification')} with seed {seed}.")
        written_task = progress.add_task("written", total=notifications)
        final_task = progress.add_task("final", total=notifications)

        def on_progress(written: int, finished: int) -> None:
            progress.update(written_task, completed=written)
            progress.update(final_task, completed=finished)

        try:
            outcome = run_once(
                installation,
                count=notifications,
                seed=seed,
                timeout=timeout,
                stop=stop,
                on_progress=on_progress,
            )
        except Stopped:
            raise click.Abort from None
    if as_json:
        print_json({**asdict(outcome), "seed": seed, "ok": outcome.is_good})
    else:
        _print_outcome(outcome)
    if not outcome.in_time:
        say(f"The time was up after {span(outcome.seconds)}: what was not final by then is lost.")
    if not outcome.is_good:
        raise Refusal(
            f"Lost: {count(outcome.lost, 'notification')}; too many: "
            f"{count(outcome.doubled, 'mail')}. Run it again with --seed {seed} to look into it."
        )


def _print_outcome(outcome: Outcome) -> None:
    states = ", ".join(f"{number:,} {state}" for state, number in outcome.deliveries.items())
    print_facts(
        [
            ("Notifications", f"{outcome.notifications:,}, claimed {outcome.claimed:,}"),
            ("Deliveries", states),
            ("Mails received", f"{outcome.mails_received:,}"),
            ("Message-IDs twice", f"{outcome.duplicate_message_ids:,}"),
            ("Lost", f"{outcome.lost:,}"),
            ("Too many", f"{outcome.doubled:,}"),
            ("Time", span(outcome.seconds)),
        ]
    )


def _live(rate: float, seed: int, stop: threading.Event, ports: dict[str, int | None]) -> None:
    from rich.live import Live
    from rich.text import Text

    from pipeline.demonstration.installation import Installation
    from pipeline.demonstration.live import run_live
    from pipeline.embedded import default_folder

    say("Starting Postgres, inbox, scheduler and worker.")
    with Installation(
        default_folder(),
        stack_every=2.0,
        smtp_port=ports["smtp_port"],
        http_port=ports["http_port"],
    ) as installation:
        click.echo()
        print_facts(
            [
                ("Inbox", installation.inbox.http_url),
                ("Mail server", f"{installation.inbox.smtp_url} (takes everything)"),
                ("Database", installation.database_url),
                ("Logs", str(installation.logs)),
            ]
        )
        click.echo()
        say("People and what they do are made up. `pipeline status` in another terminal shows how")
        say("the database sees it. Ctrl-C stops all of it.\n")
        console = stderr()
        if console.is_terminal:
            with Live(Text(""), console=console, auto_refresh=False) as live:
                run_live(
                    installation, seed=seed, rate=rate, stop=stop,
                    show=lambda counts: live.update(
                        Text(_line(counts), no_wrap=True, overflow="ellipsis"), refresh=True
                    ),
                )  # fmt: skip
        else:
            run_live(installation, seed=seed, rate=rate, stop=stop, show=_Lines())
        say("\nStopping.")
    if installation.is_postgres_stopped:
        say("Stopped; nothing is left running.")
    else:
        say("Stopped, but for Postgres: another process is using it, and it ends with that.")


class _Lines:
    """Says where things stand now and then, for logs."""

    def __init__(self, every: int = 10) -> None:
        self.every = every
        self._count = 0

    def __call__(self, counts: Counts) -> None:
        if self._count % self.every == 0:
            say(_line(counts))
        self._count += 1


def _line(counts: Counts) -> str:
    parts = [
        count(counts.written, "notification"),
        f"{counts.pending:,} to be stacked",
        f"{counts.under_way:,} under way",
        count(counts.mails, "mail"),
    ]
    parts += [
        f"{counts.deliveries[state]:,} {state}"
        for state in ("failed", "suppressed", "skipped")
        if counts.deliveries.get(state)
    ]
    return " · ".join(parts)
