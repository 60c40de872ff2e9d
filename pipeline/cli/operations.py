"""`pipeline deliveries retry`, `release` and `cancel`: what an operator does with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import click

from pipeline.states import CANCELLED, RELEASED, RETRIED

from .deliveries import DeliveryId
from .opening import opened
from .output import count, json_option, print_json, say, stderr

if TYPE_CHECKING:
    from pipeline.operations import Operation, Operations

#: Refused deliveries that are told one by one.
TOLD = 20


def _verb(
    name: str, past: str, takes: Sequence[str], summary: str
) -> Callable[[Callable[..., None]], click.Command]:
    """A command that does something with deliveries: those named, or those in some states."""

    def decorate(function: Callable[..., None]) -> click.Command:
        def run(
            ids: tuple[str, ...],
            states: tuple[str, ...],
            receiver: str | None,
            limit: int | None,
            take_all: bool,
            as_json: bool,
        ) -> None:
            if bool(ids) == bool(states):
                raise click.UsageError("Name deliveries by their ids, or --state, and not both.")
            if ids and (receiver or limit or take_all):
                raise click.UsageError("--receiver, --limit and --all go with --state.")
            if take_all and limit:
                raise click.UsageError("--all and --limit contradict each other.")
            bound = None if take_all else limit or 100
            with _operator() as operator:
                chosen = list(dict.fromkeys(ids)) or list(
                    operator.find(states, receiver=receiver, limit=bound)
                )
                done = _each(getattr(operator, name), chosen, past)
            _report(done, past, is_bulk=not ids, bound=bound, as_json=as_json)

        run.__doc__ = function.__doc__
        choice = click.Choice(takes)
        for decorator in (
            json_option,
            click.option("--all", "take_all", is_flag=True, help="All of them, however many."),
            click.option(
                "--limit",
                type=click.IntRange(min=1),
                help="At the most so many, those first that have waited longest.  [default: 100]",
            ),
            click.option("--receiver", metavar="ID", help="Only to this receiver."),
            click.option(
                "--state",
                "states",
                multiple=True,
                type=choice,
                help="Those in this state instead of named ones; may be repeated.",
            ),
            click.argument("ids", metavar="[ID]...", nargs=-1, type=DeliveryId()),
        ):
            run = decorator(run)
        return click.command(name=name, short_help=summary)(run)

    return decorate


@_verb("retry", "retried", RETRIED, "Send again what ended without a mail.")
def retry() -> None:
    """Send deliveries that failed, were suppressed, skipped or cancelled, or are deferred.

    They start anew: attempts and age count from now. Named ones are all tried, and the exit code
    is 1 if one of them was refused. With --state at the most 100 are taken unless --limit or --all
    says otherwise.
    """


@_verb("release", "released", RELEASED, "Send what is held for an operator.")
def release() -> None:
    """Send deliveries that are held, since nobody knows whether the server took them.

    The recipient may get a second copy, with the same Message-ID.
    """


@_verb("cancel", "cancelled", CANCELLED, "Give up what has not been sent.")
def cancel() -> None:
    """Give up deliveries that are queued, deferred, held or uncertain.

    What is being sent at this moment is refused.
    """


@contextmanager
def _operator() -> Iterator[Operations]:
    from pipeline.doorbells import Doorbells
    from pipeline.operations import Operations
    from pipeline.process import make_broker

    with opened() as (settings, connection), closing(make_broker(settings)) as broker:
        yield Operations(connection, settings, Doorbells(broker, senders=settings.senders))


def _each(act: Callable[[str], Operation], ids: list[str], past: str) -> list[Operation]:
    from rich.progress import track

    console = stderr()
    return [
        act(id_)
        for id_ in track(
            ids,
            past.capitalize(),
            console=console,
            transient=True,
            disable=not console.is_terminal or len(ids) < TOLD,
        )
    ]


def _report(
    done: list[Operation], past: str, *, is_bulk: bool, bound: int | None, as_json: bool
) -> None:
    good = [operation for operation in done if operation.is_done]
    refused = [operation for operation in done if not operation.is_done]
    if as_json:
        print_json([_for_programs(operation) for operation in done])
    else:
        if is_bulk and done:
            click.echo(f"{past.capitalize()}: {count(len(good), 'delivery', 'deliveries')}.")
        if not is_bulk:
            for operation in good:
                click.echo(f"Delivery {operation.id} {past}: {operation.was} → {operation.state}")
        for operation in refused[:TOLD]:
            say(f"Delivery {operation.id} not {past}: {operation.refusal}.")
        if len(refused) > TOLD:
            say(f"And {len(refused) - TOLD:,} more were not {past}.")
        if is_bulk and bound is not None and len(done) == bound:
            say(f"These were the first {bound:,}; --all takes the rest too, if there is more.")
    if not done:
        say("No delivery matches.")
    # One in bulk that changed while we came to it is none of the operator's business.
    if not done or not good or (refused and not is_bulk):
        raise click.exceptions.Exit(1)


def _for_programs(operation: Operation) -> dict[str, Any]:
    return {
        "id": operation.id,
        "done": operation.is_done,
        "was": operation.was,
        "state": operation.state,
        "refusal": operation.refusal,
    }
