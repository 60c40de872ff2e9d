"""Rows as the tracker's own code writes them, with everything that is odd about them.

A value that is missing is the text `"None"`, the actor nearly always is, and times come in three
forms or not at all. Who did it stands in `triggered_by_id`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from .items import STATES, WORKSPACE, Item
from .people import Person, make_id
from .phrases import stripped


@dataclass(frozen=True, slots=True)
class Row:
    """One row of `email_notification_log`."""

    receiver_id: str
    triggered_by_id: str
    entity_identifier: str
    data: Any
    is_urgent: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that happened to an item. A value that is None is written as `"None"`."""

    verb: str
    field: str
    old: str | None
    new: str | None
    old_id: str | None = None
    new_id: str | None = None
    comment: str = ""


def rows_for_subscribers(
    chance: random.Random, item: Item, actor: Person, change: Change
) -> list[Row]:
    """A row for each subscriber but the one who did it."""
    activity = _activity(chance, change) | {"issue_comment": stripped(change.comment)}
    data = {"issue": _issue(item), "issue_activity": activity}
    return [
        # Now and then the tracker writes a row that says nothing at all.
        Row(person.id, actor.id, item.id, data if chance.random() > 0.002 else None)
        for person in item.subscribers
        if person is not actor
    ]


def row_for_mentioned(
    chance: random.Random, item: Item, actor: Person, person: Person, change: Change
) -> Row:
    """A row for somebody who was mentioned: with less in it, and not to be waited for."""
    issue = _issue(item)
    activity = _activity(chance, change)
    if change.field == "mention" and change.old is not None:
        # Of a mention in a description the tracker says less about the item.
        del issue["project_id"], issue["workspace_slug"]
        activity["actor"] = actor.id
    data = {"issue": issue, "issue_activity": activity}
    return Row(person.id, actor.id, item.id, data, is_urgent=True)


def _issue(item: Item) -> dict[str, Any]:
    return {
        "id": item.id,
        "name": item.name,
        "identifier": item.project.identifier,
        "sequence_id": item.sequence_id,
        "state_name": item.state,
        "state_group": STATES[item.state],
        "project_id": item.project.id,
        "workspace_slug": WORKSPACE,
    }


def _activity(chance: random.Random, change: Change) -> dict[str, Any]:
    return {
        "id": make_id(chance),
        "verb": change.verb,
        "field": change.field,
        "actor": "None",
        "old_value": str(change.old),
        "new_value": str(change.new),
        "old_identifier": change.old_id,
        "new_identifier": change.new_id,
        "activity_time": _time(chance),
    }


def _time(chance: random.Random) -> str | None:
    now = datetime.now(UTC)
    draw = chance.random()
    if draw < 0.02:
        return None
    if draw < 0.12:
        return now.replace(microsecond=0).isoformat().replace("+00:00", "Z")
    if draw < 0.25:
        return str(now)
    return now.isoformat().replace("+00:00", "Z")
