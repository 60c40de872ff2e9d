"""The net effect of what was done to comments: each is told once, as it reads now, or not at all.

A comment is known by its identifier. Where the rows give none, it is known by its text, and at last
by its author: the one that an author edits or deletes is the latest that they wrote.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from html import unescape

from .activity import Activity
from .items import Effect, Event, Passage
from .richtext import READ_LIMIT

_TAG = re.compile(r"<[^<>]*>")
#: How much of two texts is compared where there is no identifier.
_COMPARED = 2_000
#: How many comments of the same text are looked through.
_CANDIDATES = 20


@dataclass(slots=True)
class _Comment:
    created: bool
    author: str | None
    id: str | None
    first: str | None
    text: str | None
    at: datetime
    known_as: set[str]
    edited: bool = False
    deleted: bool = False
    actors: list[str | None] = field(default_factory=list)


def fold(activities: Iterable[Activity]) -> list[Effect]:
    """The net effect of activities on comments, given in the order in which they happened."""
    ledger = _Ledger()
    for activity in activities:
        ledger.take(activity)
    return [effect for comment in ledger.comments if (effect := _effect(comment))]


def text_key(source: str | None) -> str | None:
    """A comment's text without tags and blanks: the same for its HTML and its stripped form."""
    if source is None:
        return None
    return "".join(unescape(_TAG.sub("", source[:READ_LIMIT])).split())[:_COMPARED] or None


class _Ledger:
    def __init__(self) -> None:
        self.comments: list[_Comment] = []
        self._by_id: dict[str, _Comment] = {}
        self._by_text: dict[str, list[_Comment]] = {}
        self._by_author: dict[str | None, list[_Comment]] = {}

    def take(self, activity: Activity) -> None:
        if activity.removes:
            self._delete(activity)
        elif activity.updates or (activity.old is not None and activity.new is not None):
            self._update(activity)
        else:
            self._create(activity)

    def _create(self, activity: Activity) -> None:
        text = activity.new or activity.comment
        comment = self._by_identifier(activity) or self._same(activity, text)
        if comment is None:
            comment = self._add(activity, text, created=True)
        self._know(comment, activity)

    def _update(self, activity: Activity) -> None:
        comment = self._by_identifier(activity)
        if comment is None and not _identifiers(activity):
            comment = self._by_words(activity, activity.old)
        if comment is None:
            comment = self._add(activity, activity.new or activity.comment, created=False)
        elif not comment.deleted:
            comment.text, comment.edited = activity.new or activity.comment, True
            comment.actors.append(activity.actor_id)
            if not comment.created:
                comment.at = activity.at
        self._know(comment, activity)

    def _delete(self, activity: Activity) -> None:
        comment = self._by_identifier(activity)
        if comment is None and not _identifiers(activity):
            comment = self._by_words(activity, activity.old or activity.comment)
        if comment is None:
            comment = self._add(activity, None, created=False)
        comment.deleted = True
        if not comment.created:
            comment.at, comment.actors = activity.at, [activity.actor_id]
        self._know(comment, activity)

    def _add(self, activity: Activity, text: str | None, *, created: bool) -> _Comment:
        comment = _Comment(
            created=created,
            author=activity.actor_id,
            id=None,
            first=None if created else activity.old,
            text=text,
            at=activity.at,
            known_as=set(),
            edited=not created,
            actors=[activity.actor_id],
        )
        self.comments.append(comment)
        self._by_author.setdefault(activity.actor_id, []).append(comment)
        return comment

    def _know(self, comment: _Comment, activity: Activity) -> None:
        for name in _identifiers(activity):
            self._by_id.setdefault(name, comment)
        for source in (activity.old, activity.new, activity.comment):
            key = text_key(source)
            if key and key not in comment.known_as:
                comment.known_as.add(key)
                self._by_text.setdefault(key, []).append(comment)

    def _by_identifier(self, activity: Activity) -> _Comment | None:
        for name in _identifiers(activity):
            if name in self._by_id:
                return self._by_id[name]
        return None

    def _same(self, activity: Activity, text: str | None) -> _Comment | None:
        """The comment that this row tells a second time, if neither has an identifier."""
        for comment in self._with_text(text):
            at_once = activity.timed and comment.at == activity.at
            if at_once and comment.author == activity.actor_id:
                return comment
        return None

    def _by_words(self, activity: Activity, words: str | None) -> _Comment | None:
        """The comment that reads like this; without words, the author's latest."""
        if text_key(words) is None:
            return self._latest(activity)
        found = [comment for comment in self._with_text(words) if not comment.deleted]
        own = [comment for comment in found if comment.author == activity.actor_id]
        return next(iter(own or found), None)

    def _with_text(self, text: str | None) -> list[_Comment]:
        # A few are enough: a thousand comments that all read "+1" can't be told apart anyway.
        return self._by_text.get(text_key(text) or "", [])[:-_CANDIDATES:-1]

    def _latest(self, activity: Activity) -> _Comment | None:
        own = self._by_author.get(activity.actor_id, [])
        while own and own[-1].deleted:
            own.pop()
        return own[-1] if own else None


def _identifiers(activity: Activity) -> list[str]:
    names = (activity.new_identifier, activity.old_identifier)
    return list(dict.fromkeys(name for name in names if name))


def _effect(comment: _Comment) -> Effect | None:
    actors = tuple(dict.fromkeys(comment.actors))
    if comment.deleted:
        return None if comment.created else Effect(comment.at, actors, Event("Deleted a comment"))
    if not comment.created and comment.first is not None and comment.first == comment.text:
        return None
    passage = Passage("comment", comment.edited, comment.text, comment.first)
    return Effect(comment.at, actors, passage)
