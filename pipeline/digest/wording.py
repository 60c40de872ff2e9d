"""The words for what is different, in pieces that a template can mark."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.cleaning import clean_line, safe_link

from .items import Change, Collection, Event, Item, Named, Passage

#: How many things that were added or removed are named.
NAMED_LIMIT = 20

_LABELS = {
    "archived_at": "Archive",
    "attachment": "Attachment",
    "attachments": "Attachment",
    "estimate_categories": "Estimate",
    "estimate_points": "Estimate",
    "estimate_time": "Estimate",
    "label": "Label",
    "labels": "Label",
    "assignees": "Assignee",
    "links": "Link",
    "modules": "Module",
    "cycles": "Cycle",
}
_COUNTED = frozenset({"Attachment", "Label", "Assignee", "Link", "Module", "Cycle"})
#: How to say it where "added" and "removed" are not the words.
_ADDED_REMOVED = {
    "assignees": ("Assigned to", "unassigned"),
    **{
        name: (f"Now {words}", f"no longer {words}")
        for name, words in (
            ("blocked_by", "blocked by"),
            ("blocking", "blocking"),
            ("duplicate", "a duplicate of"),
            ("finish_after", "to finish after"),
            ("finish_before", "to finish before"),
            ("implemented_by", "implemented by"),
            ("implements", "implementing"),
            ("relates_to", "related to"),
            ("start_after", "to start after"),
            ("start_before", "to start before"),
        )
    },
}
_DONE = re.compile(r"[a-z]{2,18}(?:ed|en|ade|ew|id)")


@dataclass(frozen=True, slots=True)
class Piece:
    """A few words of a line. `link`: an http(s) address to make of them."""

    text: str
    role: Literal["words", "old", "new"] = "words"
    link: str | None = None


def label(name: str, count: int = 1) -> str:
    """A field's name as a person would write it: `target_date` is "Target date"."""
    words = _LABELS.get(name) or clean_line(name.replace("_", " "), 60) or "Update"
    words = words[:1].upper() + words[1:]
    return f"{words}s" if count > 1 and words in _COUNTED else words


def unnamed(name: str, verb: str) -> str:
    """Something happened to a field, and there is no value to show."""
    return f"{label(name)} {verb if _DONE.fullmatch(verb) else 'updated'}"


def event(verb: str, noun: str) -> str:
    """Something happened to the item as a whole."""
    if verb and verb != "updated" and _DONE.fullmatch(verb):
        return f"{verb.capitalize()} this {noun}"
    if verb and verb != "updated":
        return f"Update: {verb}"
    return "Made a change without further details"


def people(actors: Sequence[Named], reader_id: str | None) -> str:
    """ "Dora", "Dora and you", "Dora, Bob and 2 others"."""
    names = list(dict.fromkeys(_name(actor, reader_id, "You") for actor in actors))
    return _listed(names, 3)


def pieces(item: Item, reader_id: str | None) -> list[Piece]:
    """What an item says, without who did it and when."""
    match item.what:
        case Change(name, before, after):
            return _change(name, before, after)
        case Collection():
            return _collection(item.what, reader_id)
        case Passage():
            return [Piece(_passage(item.what, reader_id))]
        case Event(text):
            return [Piece(text)]


def summary(item: Item, reader_id: str | None) -> str:
    """An item in one line, for a subject: who did it is said where the rest doesn't say enough."""
    text = "".join(piece.text for piece in pieces(item, reader_id))
    if isinstance(item.what, Change):
        return text.replace(f"{item.what.label}: ", f"{item.what.label} ", 1)
    if isinstance(item.what, Collection):
        return text
    return f"{people(item.actors, reader_id)} {text[:1].lower()}{text[1:]}"


def _change(name: str, before: str | None, after: str | None) -> list[Piece]:
    if after is None:
        was = [Piece("removed, was "), Piece(before, "old")] if before else [Piece("removed")]
        return [Piece(f"{name} "), *was]
    if before is None:
        return [Piece(f"{name} "), Piece("set to "), Piece(after, "new")]
    return [Piece(f"{name}: "), Piece(before, "old"), Piece(" → "), Piece(after, "new")]


def _collection(what: Collection, reader_id: str | None) -> list[Piece]:
    """ "Labels added: bug, ui; removed: old", "Assigned to you; unassigned Bob"."""
    if what.field in _ADDED_REMOVED:
        added, removed = _ADDED_REMOVED[what.field]
    elif what.added:
        added, removed = f"{label(what.field, len(what.added))} added:", "removed:"
    else:
        added, removed = "", f"{label(what.field, len(what.removed))} removed:"
    words: list[Piece] = []
    if what.added:
        words += [Piece(f"{added} "), *_named(what.added, "new", reader_id)]
    if what.removed:
        removed = f"; {removed}" if what.added else f"{removed[0].upper()}{removed[1:]}"
        words += [Piece(f"{removed} "), *_named(what.removed, "old", reader_id)]
    return words


def _named(
    things: Sequence[Named], role: Literal["old", "new"], reader_id: str | None
) -> list[Piece]:
    words: list[Piece] = []
    for thing in things[:NAMED_LIMIT]:
        if words:
            words.append(Piece(", "))
        link = safe_link(thing.name) if thing.name.startswith(("http://", "https://")) else None
        name = _name(thing, reader_id, "you")
        words.append(Piece(name, role, link if role == "new" else None))
    if len(things) > NAMED_LIMIT:
        words.append(Piece(f" and {len(things) - NAMED_LIMIT} more"))
    return words


def _passage(what: Passage, reader_id: str | None) -> str:
    place = "a comment" if what.where == "comment" else "the description"
    if what.mentioned:
        names = [_name(person, reader_id, "you") for person in what.mentioned]
        if what.where == "description" or "you" in names:
            return f"Mentioned {_listed(names, 3)} in {place}"
    if what.where == "comment" and not what.edited:
        return "Commented"
    return f"Edited {place}" if what.body else f"Cleared {place}"


def _name(named: Named, reader_id: str | None, reader: str) -> str:
    return reader if reader_id is not None and named.id == reader_id else named.name


def _listed(names: Sequence[str], limit: int) -> str:
    if len(names) > limit:
        return f"{', '.join(names[: limit - 1])} and {len(names) - limit + 1} others"
    *most, last = names or ["Someone"]
    return f"{', '.join(most)} and {last}" if most else last
