"""A stack of notifications told by its net effect.

Pure: everything a digest needs is handed in. Nothing in a row's `data` makes this raise.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote

from pipeline.cleaning import as_name, clean_line, safe_link

from .activity import Activity, Notification, read
from .items import Effect, Item, Named, Passage
from .net_effect import fold
from .richtext import mentioned_ids, parse

TITLE_LIMIT = 200
NAME_LIMIT = 80

#: Who did it, when nobody knows or the account is gone.
UNKNOWN_PERSON = "Someone"


@dataclass(frozen=True, slots=True)
class Entity:
    """What the notifications are about. `reference` is what people call it (WEB-12)."""

    name: str
    identifier: str
    reference: str | None
    title: str | None
    url: str | None


@dataclass(frozen=True, slots=True)
class Digest:
    """What to tell about one entity.

    `entity` has its reference, title and url filled in from the rows where it had none. `items` are
    in the order in which they happened; `more_count` further updates are not among them.
    """

    entity: Entity
    items: tuple[Item, ...]
    more_count: int

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing left to say."""
        return self.update_count == 0

    @property
    def update_count(self) -> int:
        return len(self.items) + self.more_count


def people_named(notifications: Iterable[Notification | Activity]) -> set[str]:
    """The ids of all people whose names a digest of these notifications may show."""
    people: set[str] = set()
    for notification in notifications:
        activity = read(notification)
        if activity.actor_id:
            people.add(activity.actor_id)
        for source in (activity.new, activity.old, activity.comment):
            people |= mentioned_ids(source)
    return people


def make_digest(
    notifications: Iterable[Notification | Activity],
    *,
    entity: Entity,
    people: Mapping[str, str],
    omitted_count: int = 0,
    base_url: str = "",
    items_shown: int = 50,
) -> Digest:
    """Stack notifications into what they come to.

    Parameters:
      notifications(Iterable[Notification | Activity]): In any order, as rows or as `read`.
      entity(Entity): What they are about, as far as is known.
      people(Mapping[str, str]): Names by id, for the ids of `people_named`. Who is missing is
        called "Someone".
      omitted_count(int): Further notifications of the stack that were not handed in.
      base_url(str): The tracker's address, to link to an item that has no `url`.
      items_shown(int): The most items to keep; the others are counted.
    """
    activities = [read(notification) for notification in notifications]
    effects = fold(activities, _noun(entity.name))
    shown = effects[: max(0, items_shown)]
    return Digest(
        entity=_described(entity, activities, base_url),
        items=tuple(_item(effect, people) for effect in shown),
        more_count=len(effects) - len(shown) + max(0, omitted_count),
    )


def _item(effect: Effect, people: Mapping[str, str]) -> Item:
    what = effect.what
    if isinstance(what, Passage):
        body = parse(what.source, people) if what.source else None
        before = mentioned_ids(what.source_before)
        named = [person for person in (body.mentioned if body else ()) if person not in before]
        what = replace(
            what,
            source=None,
            source_before=None,
            body=None if body is None or body.is_blank else body,
            mentioned=tuple(_person(person, people, "someone") for person in named),
        )
    actors = tuple(_person(actor, people, UNKNOWN_PERSON) for actor in effect.actors)
    return Item(effect.at, actors, what)


def _person(person: str | None, people: Mapping[str, str], unknown: str) -> Named:
    name = as_name(people.get(person), NAME_LIMIT) if person else None
    return Named(person, name or unknown)


def _described(entity: Entity, activities: Sequence[Activity], base_url: str) -> Entity:
    """The entity with what its rows say, the newest first, where it says nothing itself."""
    newest = sorted(activities, key=lambda activity: activity.at, reverse=True)
    reference = next((a.issue.reference for a in newest if a.issue.reference), None)
    return replace(
        entity,
        reference=as_name(entity.reference, 60) or (reference and clean_line(reference, 60)),
        title=as_name(entity.title, TITLE_LIMIT) or _title(newest),
        url=safe_link(entity.url or "") or _url(newest, base_url),
    )


def _title(newest: Sequence[Activity]) -> str | None:
    """The name in the newest row, unless the rows themselves tell that it was changed since: a row
    carries the name that the item had when the row was begun."""
    title = next((a.issue.name for a in newest if a.issue.name), None)
    names = [a for a in newest if a.field == "name" and a.new]
    if names and (title is None or title in {as_name(a.old, TITLE_LIMIT) for a in names}):
        title = names[0].new
    return as_name(title, TITLE_LIMIT)


def _url(newest: Sequence[Activity], base_url: str) -> str | None:
    for activity in newest if base_url else ():
        issue = activity.issue
        if issue.id and issue.project_id and issue.workspace_slug:
            slug, project, item = (
                quote(part, safe="") for part in (issue.workspace_slug, issue.project_id, issue.id)
            )
            return safe_link(f"{base_url.rstrip('/')}/{slug}/projects/{project}/issues/{item}")
    return None


def _noun(name: str) -> str:
    """What to call the thing in "Deleted this issue"."""
    noun = (as_name(name, 40) or "").lower().replace("_", " ")
    return noun if re.fullmatch(r"[a-z][a-z -]*", noun) else "item"


__all__ = ["Activity", "Digest", "Entity", "Notification", "make_digest", "people_named", "read"]
