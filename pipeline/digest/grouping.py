"""Which activities belong together, and which only repeat another."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from .activity import Activity
from .comments import text_key
from .richtext import has_mentions

Kind = Literal["comment", "description", "set", "archive", "value", "event"]
#: A kind, and the field's name where the kind has more than one.
Group = tuple[Kind, str]

_DESCRIPTIONS = frozenset({"description", "description_html", "description_stripped"})
_SETS = frozenset(
    {"labels", "assignees", "link", "links", "attachment", "attachments", "modules", "cycles"}
    | {"blocked_by", "blocking", "blocks", "duplicate", "duplicate_of", "relates_to"}
    | {"start_before", "start_after", "finish_before", "finish_after"}
    | {"implements", "implemented_by", "reactions", "subscribers"}
)
#: The values of `archived_at`, words for what was done.
ARCHIVED = frozenset({"archive", "manual_archive", "archived"})
RESTORED = frozenset({"restore", "restored", "unarchive"})


def grouped(activities: Iterable[Activity]) -> dict[Group, list[Activity]]:
    """Activities by what they are about, oldest first, each told once."""
    ordered = sorted(_once(activities), key=lambda activity: activity.at)
    known = _Comments.told_by(ordered)
    groups: dict[Group, list[Activity]] = {}
    for activity in ordered:
        for group, part in _parts(activity, known):
            groups.setdefault(group, []).append(part)
    return groups


def _once(activities: Iterable[Activity]) -> list[Activity]:
    """Without what is told a second time: the same row, the same activity, and rows for mentions
    that were given another activity's id and values."""
    kept: list[Activity] = []
    rows: set[str] = set()
    told: set[object] = set()
    for activity in sorted(activities, key=lambda activity: activity.field == "mention"):
        values = (activity.old, activity.new)
        keys: set[object] = set()
        if activity.id:
            keys |= {(activity.id, activity.field, activity.verb, values)}
            if activity.field == "mention" and (activity.id, values) in told:
                continue
        elif activity.timed:
            keys |= {replace(activity, notification_id="")}
        if activity.notification_id in rows or keys & told:
            continue
        rows.add(activity.notification_id)
        told |= keys
        told.add((activity.id, values))
        kept.append(activity)
    return kept


@dataclass(frozen=True, slots=True)
class _Comments:
    """The comments that have rows of their own."""

    ids: frozenset[str]
    texts: frozenset[str | None]

    @classmethod
    def told_by(cls, activities: Sequence[Activity]) -> "_Comments":
        told = [each for each in activities if each.field == "comment" and not each.removes]
        texts = {text_key(source) for each in told for source in (each.new, each.comment)}
        ids = {name for each in told for name in _identifiers(each)}
        return cls(frozenset(ids), frozenset(texts - {None}))

    def tell(self, activity: Activity) -> bool:
        return bool(self.ids & _identifiers(activity)) or text_key(activity.new) in self.texts


def _parts(activity: Activity, known: _Comments) -> Iterator[tuple[Group, Activity]]:
    """A row says one thing, except that a comment may come with any other change."""
    if activity.field == "mention":
        kind = _mention(activity)
        if kind == "event":
            yield (kind, ""), replace(activity, field="")
        elif kind == "description" or not known.tell(activity):
            yield (kind, ""), activity
        return
    has_values = bool(activity.field) or activity.old is not None or activity.new is not None
    if activity.comment and activity.field != "comment":
        if text_key(activity.comment) not in known.texts:
            yield ("comment", ""), _aside(activity)
        if not has_values:
            return
    yield _group(activity), activity


def _aside(activity: Activity) -> Activity:
    """The comment that came with something else."""
    comment = replace(activity, field="comment", old=None, new=None)
    if not activity.field:
        return comment
    return replace(comment, verb="created", new_identifier=None, old_identifier=None)


def _group(activity: Activity) -> Group:
    name = activity.field
    if activity.remark or activity.oversized or name in ("", "issue"):
        return "event", ""
    if name == "comment":
        return "comment", ""
    if name in _DESCRIPTIONS:
        return "description", ""
    if name in _SETS:
        return "set", name
    if name == "archived_at" and activity.new in ARCHIVED | RESTORED:
        return "archive", ""
    return "value", name


def _mention(activity: Activity) -> Kind:
    """A row for somebody who was mentioned: a comment, a description, or neither: one edit may
    write a mention row with the values of another field."""
    named = has_mentions(activity.old) or has_mentions(activity.new)
    if activity.old is not None and not named:
        return "event"
    if _identifiers(activity) or not (activity.updates or activity.old is not None):
        return "comment"
    return "description"


def _identifiers(activity: Activity) -> set[str]:
    return {name for name in (activity.new_identifier, activity.old_identifier) if name}
