"""What a digest consists of: one item for each thing that is different now."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from .richtext import RichText


@dataclass(frozen=True, slots=True)
class Named:
    """A person, a label, a link: its id where that is known, and the name to show."""

    id: str | None
    name: str


@dataclass(frozen=True, slots=True)
class Change:
    """A value became another. `None` on a side: there was, or is, no value."""

    label: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Collection:
    """Things that were put into a set or taken out of it: labels, assignees, links."""

    field: str
    added: tuple[Named, ...]
    removed: tuple[Named, ...]


@dataclass(frozen=True, slots=True)
class Passage:
    """A comment or the description. `mentioned` are the people that it newly names.

    `source` is what was written, unsafe and of any length; `body` is what of it can be shown, set
    once it is known that this item will be shown.
    """

    where: Literal["comment", "description"]
    edited: bool
    source: str | None
    source_before: str | None
    body: RichText | None = None
    mentioned: tuple[Named, ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """Something that has no values: a deletion, or what nobody described any closer."""

    text: str


@dataclass(frozen=True, slots=True)
class Effect:
    """One thing that is different now, by whom (ids, `None`: not known), and since when (UTC)."""

    at: datetime
    actors: tuple[str | None, ...]
    what: Change | Collection | Passage | Event


@dataclass(frozen=True, slots=True)
class Item:
    """An effect with its people's names, ready to be shown."""

    at: datetime
    actors: tuple[Named, ...]
    what: Change | Collection | Passage | Event
