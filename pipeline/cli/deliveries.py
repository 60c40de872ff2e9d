"""`pipeline deliveries list`: what became of each stacked email."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Any

import click

from pipeline.states import STATES

from .opening import opened
from .output import (
    json_option,
    print_json,
    print_table,
    say,
    span,
)

if TYPE_CHECKING:
    from pipeline.deliveries import Record

    _TextType = click.ParamType[str]
else:
    _TextType = click.ParamType


class DeliveryId(_TextType):
    """A delivery's id; its Message-ID, which begins with it, will do."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        written = re.fullmatch(r"<?([^@<>]+)(?:@[^<>]*)?>?", str(value).strip())
        try:
            return str(uuid.UUID(written[1] if written else value))
        except ValueError:
            self.fail(
                f"{value!r} is not the id of a delivery, such as "
                "1f0c2a5e-6d3b-4c8e-9a51-7b2f3e4d5c6a; `pipeline deliveries list` shows them.",
                param,
                ctx,
            )


@click.group(short_help="Look at deliveries, retry, release or cancel them.")
def deliveries() -> None:
    """A delivery is one stacked email: all that happened to one item, for one recipient."""


@deliveries.command(name="list", short_help="List deliveries, latest change first.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(STATES),
    help="Only in this state; may be repeated.",
)
@click.option("--receiver", metavar="ID", help="Only to this receiver.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="At the most so many.",
)
@json_option
def list_(states: tuple[str, ...], receiver: str | None, limit: int, as_json: bool) -> None:
    """List deliveries, those first whose state changed last."""
    from pipeline.deliveries import list_deliveries

    with opened() as (_, connection):
        found = list_deliveries(connection, states=states, receiver=receiver, limit=limit)
    if as_json:
        print_json([row_for_programs(row) for row in found])
    elif found:
        print_table(
            ("id", "state", "since", "to", "about", "rows", "tries", "reason"),
            [
                (
                    row["id"], row["state"], span(row["age"], units=1),
                    row["email"] or row["receiver_id"],
                    row["reference"] or f"{row['entity_name']} {row['entity_identifier']}",
                    row["notification_count"], row["attempt_count"], row["reason"],
                )
                for row in found
            ],
            cut=("to", "about", "reason"),
            drop=("tries", "rows", "about", "reason", "since", "to"),
        )  # fmt: skip
    if not found:
        say("No delivery matches.")
    if len(found) == limit and not as_json:
        say(f"These are the first {limit:,}; --limit shows more, if there is more.")


def row_for_programs(row: Record) -> Record:
    """Without what only people need."""
    return {name: value for name, value in row.items() if name not in ("age", "at")}
