"""What is different now, out of everything that happened.

Todo → Doing → Done is "Todo → Done"; A → B → A is nothing. A label that was put on and taken off
again is nothing. What was told twice is told once.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from . import comments, tally, wording
from .activity import Activity
from .grouping import ARCHIVED, grouped
from .items import Change, Effect, Event, Passage
from .richtext import plain

#: How much of a value is shown.
VALUE_LIMIT = 200

#: Fields of one value, even if they seem to be given a second one without losing the first.
_VALUES = frozenset(
    {"name", "state", "priority", "parent", "start_date", "target_date", "intake", "archived_at"}
    | {"estimate", "estimate_points", "estimate_categories", "estimate_time"}
)


def fold(activities: Iterable[Activity], noun: str) -> list[Effect]:
    """The net effect, oldest first.

    Parameters:
      activities(Iterable[Activity]): In any order.
      noun(str): What the item is, `issue`.
    """
    effects: list[Effect] = []
    for (kind, name), group in grouped(activities).items():
        match kind:
            case "comment":
                effects.extend(comments.fold(group))
            case "description":
                effects.extend(_passage(group))
            case "set":
                effects.extend(tally.fold(name, group))
            case "archive":
                effects.extend(_archive(group, noun))
            case "value" if name not in _VALUES and _is_set(group):
                effects.extend(tally.fold(name, group))
            case "value":
                effects.extend(_value(name, group))
            case _:
                effects.extend(_events(group, noun))
    return sorted(effects, key=lambda effect: effect.at)


def _is_set(group: Sequence[Activity]) -> bool:
    """Whether a field that we know nothing of is a set: only ever added to or removed from, and
    added to when it had something."""
    if any((activity.old is None) == (activity.new is None) for activity in group):
        return False
    added = [activity.new is not None for activity in group]
    return any(first and second for first, second in pairwise(added))


def _value(name: str, group: Sequence[Activity]) -> list[Effect]:
    told = [_normal(activity) for activity in group]
    named = [activity for activity in told if activity.old != activity.new]
    if not named:
        if any(activity.old is not None for activity in told):
            return []
        last = told[-1]
        text = wording.unnamed(name, last.verb or "updated")
        return [Effect(last.at, (last.actor_id,), Event(text))]
    before, after = _ends(named)
    if before == after:
        return []
    actors = tuple(dict.fromkeys(activity.actor_id for activity in named))
    change = Change(wording.label(name), _shown(before), _shown(after))
    return [Effect(named[-1].at, actors, change)]


def _normal(activity: Activity) -> Activity:
    """`priority` has a word for no priority."""
    if activity.field != "priority":
        return activity
    old, new = (None if value == "none" else value for value in (activity.old, activity.new))
    return replace(activity, old=old, new=new)


def _ends(chain: Sequence[Activity]) -> tuple[str | None, str | None]:
    """The value before the first change and after the last.

    Rows of one moment have no order. If following them in the order given makes no chain, the ends
    are the value that is left more often than it is reached, and the other way round.
    """
    first, last = chain[0].old, chain[-1].new
    times = {activity.at for activity in chain}
    unordered = len(times) < len(chain) or not all(activity.timed for activity in chain)
    pairs = pairwise(chain)
    if not unordered or all(one.new == other.old for one, other in pairs):
        return first, last
    balance = Counter(activity.old for activity in chain)
    balance.subtract(activity.new for activity in chain)
    open_ends = {value: count for value, count in balance.items() if count}
    if not open_ends:
        return first, first
    if sorted(open_ends.values()) == [-1, 1]:
        start, end = sorted(open_ends, key=lambda value: open_ends[value], reverse=True)
        return start, end
    return first, last


def _shown(value: str | None) -> str | None:
    return (plain(value, VALUE_LIMIT) or None) if value is not None else None


def _passage(group: Sequence[Activity]) -> list[Effect]:
    before, after = _ends(group)
    if before == after:
        return []
    actors = tuple(dict.fromkeys(activity.actor_id for activity in group))
    passage = Passage("description", edited=True, source=after, source_before=before)
    return [Effect(group[-1].at, actors, passage)]


def _archive(group: Sequence[Activity], noun: str) -> list[Effect]:
    first, last = group[0], group[-1]
    # What was archived first was not archived before: two words that differ cancel out.
    if (first.new in ARCHIVED) != (last.new in ARCHIVED):
        return []
    text = f"{'Archived' if last.new in ARCHIVED else 'Restored'} this {noun}"
    return [Effect(last.at, (last.actor_id,), Event(text))]


def _events(group: Sequence[Activity], noun: str) -> list[Effect]:
    effects: dict[object, Effect] = {}
    for activity in group:
        actors = (activity.actor_id,)
        what: Change | Event
        if activity.oversized:
            what = Event("Made a change that is too large to show here")
        elif activity.remark:
            what = Event(f"Update: {activity.remark}")
        elif activity.old is not None or activity.new is not None:
            if activity.old == activity.new:
                continue
            what = Change("Update", _shown(activity.old), _shown(activity.new))
        else:
            what = Event(wording.event(activity.verb, noun))
        effects[(actors, what)] = Effect(activity.at, actors, what)
    return list(effects.values())
