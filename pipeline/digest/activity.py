"""One row's `data`, in either of its forms, read into an `Activity`.

Nothing in here raises for anything that JSON can hold: what is not understood is kept to be shown
plainly.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import cast

from pipeline.cleaning import as_name, clean_line, describe, identifier

#: The keys that make an object an activity, in the full and in the plain form.
_TELLING = frozenset(
    {"verb", "field", "old_value", "new_value", "comment", "issue_comment"}
    | {"old_identifier", "new_identifier"}
)
#: Keys that accompany an activity and say nothing alone.
_ACCOMPANYING = frozenset({"id", "at", "activity_time", "actor", "issue", "issue_activity"})

_EARLIEST = datetime(1970, 1, 2, tzinfo=UTC)
_LATEST = datetime(9000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Notification:
    """A row of `pipeline.email_notification_log`.

    Parameters:
      id(str): The row's id.
      data(object): The decoded JSON; may be anything, None included.
      triggered_by_id(str | None): Who did it.
      created_at(datetime): When the row was written.
      oversized(bool): Whether `data` was too large to be read at all.
    """

    id: str
    data: object
    triggered_by_id: str | None
    created_at: datetime
    oversized: bool = False


@dataclass(frozen=True, slots=True)
class Issue:
    """What a row says about the item itself. Every part may be missing."""

    id: str | None = None
    name: str | None = None
    reference: str | None = None
    project_id: str | None = None
    workspace_slug: str | None = None


@dataclass(frozen=True, slots=True)
class Activity:
    """What happened, as one row tells it.

    Values are text as it was written, or None for nothing (`null`, `""` and the string `"None"`
    alike). `remark` holds what could not be understood, in plain words.
    """

    notification_id: str
    id: str | None
    actor_id: str | None
    at: datetime
    #: Whether `at` is the activity's own time and not the row's.
    timed: bool
    verb: str
    field: str
    old: str | None
    new: str | None
    old_identifier: str | None
    new_identifier: str | None
    comment: str | None
    issue: Issue
    remark: str | None
    oversized: bool

    @property
    def removes(self) -> bool:
        return self.verb in ("deleted", "removed", "delete", "remove")

    @property
    def updates(self) -> bool:
        return self.verb in ("updated", "edited", "changed", "update")


def read(notification: Notification | Activity) -> Activity:
    """Read a row, unless it was read before. Never raises."""
    if isinstance(notification, Activity):
        return notification
    data = notification.data
    outer = cast("dict[object, object]", data) if isinstance(data, dict) else {}
    inner = outer.get("issue_activity")
    told = cast("dict[object, object]", inner) if isinstance(inner, dict) else outer
    at = _time(told.get("activity_time")) or _time(told.get("at"))
    return Activity(
        notification_id=notification.id,
        id=identifier(told.get("id")),
        actor_id=identifier(notification.triggered_by_id) or identifier(told.get("actor")),
        at=at or _aware(notification.created_at),
        timed=at is not None,
        verb=_word(told.get("verb")),
        field=_word(told.get("field")),
        old=_value(told.get("old_value")),
        new=_value(told.get("new_value")),
        old_identifier=identifier(told.get("old_identifier")),
        new_identifier=identifier(told.get("new_identifier")),
        comment=_value(told.get("comment")) or _value(told.get("issue_comment")),
        issue=_issue(outer.get("issue")),
        remark=_remark(data, inner, told),
        oversized=notification.oversized,
    )


def _remark(data: object, inner: object, told: dict[object, object]) -> str | None:
    if not isinstance(data, dict):
        return None if data in (None, "", "None") else describe(data)
    if inner is not None and not isinstance(inner, dict):
        return _value(inner) and describe(inner)
    if _TELLING & told.keys():
        return None
    unknown = {key: told[key] for key in list(told)[:40] if key not in _ACCOMPANYING}
    return describe(unknown) if unknown else None


def _issue(value: object) -> Issue:
    if not isinstance(value, dict):
        return Issue()
    project, number = identifier(value.get("identifier")), identifier(value.get("sequence_id"))
    name = value.get("name")
    return Issue(
        id=identifier(value.get("id")),
        name=as_name(name) if isinstance(name, str) else None,
        reference=f"{project}-{number}" if project and number else None,
        project_id=identifier(value.get("project_id")),
        workspace_slug=identifier(value.get("workspace_slug")),
    )


def _value(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return None if not value or value.strip() in ("", "None") else value
    return describe(value)


def _word(value: object) -> str:
    word = clean_line(value, 60).lower() if isinstance(value, str) else ""
    return "" if word == "none" else word


def _time(value: object) -> datetime | None:
    """An activity's time: ISO 8601 with a `T` or a blank, with or without a fraction."""
    if not isinstance(value, str) or not 10 <= len(value) <= 40:
        return None
    try:
        return _aware(datetime.fromisoformat(value.strip()), strict=True)
    except ValueError:
        return None


def _aware(value: datetime, *, strict: bool = False) -> datetime:
    """In UTC, and far enough from the calendar's ends for every zone."""
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    # Compared before it is converted: near the ends of the calendar, converting overflows.
    if not _EARLIEST - timedelta(days=1) <= value <= _LATEST:
        if strict:
            raise ValueError("out of range")
        value = _EARLIEST if value < _EARLIEST else _LATEST
    return value.astimezone(UTC)
