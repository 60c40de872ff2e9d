"""The net effect on a set: what is in it now that was not, and what no longer is."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from pipeline.cleaning import ELLIPSIS

from . import wording
from .activity import Activity
from .items import Collection, Effect, Event, Named
from .richtext import plain

#: How much of the name of a label, a person or a link is shown.
NAME_LIMIT = 200


@dataclass(slots=True)
class _Element:
    id: str | None
    name: str
    was_in: bool
    is_in: bool
    at: datetime
    actors: list[str | None] = field(default_factory=list)


def fold(name: str, activities: Iterable[Activity]) -> list[Effect]:
    """Parameters:
      name(str): The field, `labels`.
      activities(Iterable[Activity]): What happened to it, in that order.

    Returns:
      list[Effect]: One for everything that was added or removed, and one for each thing that was
        removed without a word about what it was.
    """
    tally = _Tally(name)
    for activity in activities:
        tally.take(activity)
    return tally.effects()


class _Tally:
    def __init__(self, name: str) -> None:
        self._field = name
        self._elements: list[_Element] = []
        self._by_id: dict[str, _Element] = {}
        self._by_name: dict[str, _Element] = {}
        self._unnamed: list[Effect] = []

    def take(self, activity: Activity) -> None:
        removed, added = activity.old, activity.new
        if activity.removes and removed is None:
            removed, added = added, None
        if removed is None and added is None:
            self._take_unnamed(activity)
            return
        old_id, new_id = activity.old_identifier, activity.new_identifier
        # A relation's only identifier is on the side of the old value, whichever way it goes.
        if removed is not None:
            self._put(activity, removed, old_id or (None if added else new_id), is_in=False)
        if added is not None:
            self._put(activity, added, new_id or (None if removed else old_id), is_in=True)

    def effects(self) -> list[Effect]:
        changed = [element for element in self._elements if element.was_in != element.is_in]
        if not changed:
            return self._unnamed
        what = Collection(
            self._field,
            added=tuple(self._named(each) for each in changed if each.is_in),
            removed=tuple(self._named(each) for each in changed if not each.is_in),
        )
        actors = tuple(dict.fromkeys(actor for each in changed for actor in each.actors))
        return [Effect(max(each.at for each in changed), actors, what), *self._unnamed]

    def _named(self, element: _Element) -> Named:
        name = plain(element.name, NAME_LIMIT)
        if self._field in ("attachment", "attachments"):
            name = name.rstrip("/").rpartition("/")[2]
        return Named(element.id, name or ELLIPSIS)

    def _put(self, activity: Activity, name: str, key: str | None, *, is_in: bool) -> None:
        element = self._find(name, key)
        if element is None:
            element = _Element(key, name, was_in=not is_in, is_in=is_in, at=activity.at)
            self._elements.append(element)
        if key:
            self._by_id[key] = element
        self._by_name[name] = element
        self._settle(element, activity, is_in=is_in)

    def _find(self, name: str, key: str | None) -> _Element | None:
        if key and key in self._by_id:
            return self._by_id[key]
        same_name = self._by_name.get(name)
        # Two people of one name have two ids.
        if same_name and key and same_name.id and same_name.id != key:
            return None
        return same_name

    def _settle(self, element: _Element, activity: Activity, *, is_in: bool) -> None:
        element.is_in = is_in
        element.at = activity.at
        element.actors.append(activity.actor_id)

    def _take_unnamed(self, activity: Activity) -> None:
        """Something without a name: what was removed is the author's latest addition, if any."""
        if not activity.removes:
            text = wording.unnamed(self._field, activity.verb or "updated")
            self._unnamed.append(Effect(activity.at, (activity.actor_id,), Event(text)))
            return
        element = self._by_id.get(activity.old_identifier or activity.new_identifier or "")
        if element is None:
            element = next(
                (
                    each
                    for each in reversed(self._elements)
                    if each.is_in and each.actors[-1] == activity.actor_id
                ),
                None,
            )
        if element is None:
            text = wording.unnamed(self._field, "removed")
            self._unnamed.append(Effect(activity.at, (activity.actor_id,), Event(text)))
        else:
            self._settle(element, activity, is_in=False)
