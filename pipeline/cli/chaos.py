"""`pipeline chaos`: break a whole installation in every way, and check that nothing was lost."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .errors import Refusal
from .output import count, json_option, print_facts, print_json, say, span
from .signals import stop_on_signals

if TYPE_CHECKING:
    from pipeline.chaos.ground import Ground
    from pipeline.chaos.run import Progress


@click.command(short_help="Break a whole installation, and see that nothing is lost.")
@click.option(
    "--minutes",
    type=click.FloatRange(min=0.05, max=10_000),
    default=1.0,
    show_default=True,
    help="How long things go wrong.",
)
@click.option("--seed", type=int, help="Let the same things go wrong.  [default: random]")
@click.option(
    "--rate",
    type=click.FloatRange(min=0.1, max=10_000),
    default=50.0,
    show_default=True,
    help="Notifications a second.",
)
@click.option(
    "--faults",
    type=click.FloatRange(min=0, max=20),
    default=1.0,
    show_default=True,
    help="Faults in proportion to the usual ones.",
)
@click.option(
    "--on-uncertain",
    type=click.Choice(["resend", "hold"]),
    default="resend",
    show_default=True,
    help="What is done with a mail whose reply was lost.",
)
@click.option(
    "--patience",
    metavar="DURATION",
    default="5m",
    show_default=True,
    help="How long all may take to become final, once there is peace.",
)
@click.option(
    "--report",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write the report into this folder, with a picture and the logs.",
)
@json_option
def chaos(
    minutes: float,
    seed: int | None,
    rate: float,
    faults: float,
    on_uncertain: str,
    patience: str,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Break a whole installation at random, and check that no notification was lost or doubled.

    Schedulers, workers and applications run as processes of their own. They are killed and frozen,
    some have wrong clocks; connections are cut and stalled, the database is restarted; the mail
    server refuses, falls silent and loses replies; messages are doubled, deleted and delayed. Then
    there is peace, and rows, deliveries and received mails are compared.

    With PIPELINE_DATABASE_URL it is done on that server, in a new database that is dropped at the
    end, even if this command is killed: nothing else there is touched, no session of others ended,
    and the server is not restarted. Without it, on an embedded Postgres. Mail goes to a server of
    the run's own, and nowhere else.

    Exits with 0 only if all became final, nothing was lost or dispatched twice, and each mail that
    came twice is explained by an attempt whose reply was lost. Ctrl-C brings peace early.
    """
    from pipeline.chaos.report import as_facts, as_svg, is_good
    from pipeline.chaos.report import as_json as report_json
    from pipeline.chaos.run import Run
    from pipeline.settings import duration

    try:
        patient = duration(patience).total_seconds()
    except ValueError as error:
        raise click.BadParameter(f"{patience!r} {error}", param_hint="--patience") from None
    seed = secrets.randbelow(1_000_000) if seed is None else seed
    stop = stop_on_signals()
    temporary = Path(tempfile.gettempdir()).absolute() / f"pipeline-chaos-{secrets.token_hex(6)}"
    ground = _ground(temporary / "postgres")
    place = folder or temporary / "run"
    say(
        "It starts processes and a mail server of its own, which takes all mail, and breaks only "
        "these. It reads no settings but PIPELINE_DATABASE_URL, and sends nothing to anybody."
    )
    say(f"Chaos for {minutes:g} min with seed {seed}.")
    run = Run(
        ground,
        place,
        seed=seed,
        minutes=minutes,
        rate=rate,
        faults=faults,
        on_uncertain=on_uncertain,
        patience=patient,
        stop=stop,
        on_progress=_Progress(),
    )
    try:
        report = run.carry_out()
        if folder is not None:
            (folder / "report.json").write_text(json.dumps(report_json(report), indent=2) + "\n")
            (folder / "timeline.svg").write_text(as_svg(report))
        if as_json:
            print_json(report_json(report))
        else:
            print_facts(as_facts(report))
        if is_good(report):
            return
        for finding in report_json(report)["findings"]:
            say(finding)
        if folder is None:
            folder = Path(tempfile.gettempdir()).absolute() / f"pipeline-chaos-seed-{seed}"
            shutil.copytree(place, folder, dirs_exist_ok=True)
        raise Refusal(
            f"The promise was not kept, or not all became final. The logs are in {folder}. The "
            f"same faults again: pipeline chaos --minutes {minutes:g} --seed {seed} --rate "
            f"{rate:g} --faults {faults:g} --on-uncertain {on_uncertain}"
        )
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _ground(folder: Path) -> Ground:
    from pipeline.chaos.ground import EmbeddedGround, ScratchGround

    url = os.environ.get("PIPELINE_DATABASE_URL")
    if url:
        scratch = ScratchGround(url)
        say(
            f"On the server of PIPELINE_DATABASE_URL, in a new database {scratch.name}, which is "
            "dropped at the end, however that comes. It ends sessions in this database only, "
            "touches nothing else there, and does not restart the server."
        )
        return scratch
    folder.parent.mkdir(mode=0o755)
    say("On an embedded Postgres of its own, in a temporary folder; it is restarted on the way.")
    return EmbeddedGround(folder)


class _Progress:
    """Says how far it is: a line that changes on a terminal, else one now and then."""

    def __init__(self, every: float = 10.0) -> None:
        self.every = every
        self._told_at = -every

    def __call__(self, progress: Progress) -> None:
        if progress.seconds - self._told_at < self.every:
            return
        self._told_at = progress.seconds
        stage = "peace" if progress.is_peace else "chaos"
        kills = progress.done.get("kill", 0)
        say(
            f"{span(progress.seconds)} {stage}: {count(progress.notifications, 'notification')}, "
            f"{progress.unfinished:,} on their way, {count(progress.taken, 'mail')} received, "
            f"{count(kills, 'process', 'processes')} killed"
        )
