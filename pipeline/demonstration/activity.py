"""What happens in the demo's tracker: people change items, comment, and change their minds."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import date, timedelta

from .items import LABELS, PRIORITIES, STATES, Comment, Item, make_items
from .people import Person, make_id, make_people
from .phrases import edited, mention, mentioned, saying
from .rows import Change, Row, row_for_mentioned, rows_for_subscribers

#: How likely it is that the next thing happens to the item that the last one happened to.
STAYS = 0.7

#: How likely a change is to be undone by the next one.
UNDONE = 0.15

_RELATIONS = ("blocked_by", "blocking", "duplicate", "relates_to", "start_before")


class Tracker:
    """A project tracker that nobody uses. The same seed makes the same things happen.

    Parameters:
      seed: Decides everything but the time.
      item_count: How many items there are.
    """

    def __init__(self, seed: int, item_count: int = 24) -> None:
        self._chance = random.Random(seed)
        self.people = make_people(self._chance)
        self.items = make_items(self._chance, self.people, item_count)
        self._item = self.items[0]
        self._undo: tuple[Item, Change] | None = None
        self._kinds: dict[Callable[[Item, Person], list[Row]], int] = {
            self._change_state: 20,
            self._change_priority: 10,
            self._change_date: 8,
            self._change_labels: 10,
            self._change_assignees: 8,
            self._change_estimate: 4,
            self._change_two_fields: 5,
            self._rename: 4,
            self._relate: 5,
            self._comment: 18,
            self._mention_in_comment: 8,
            self._edit_comment: 5,
            self._delete_comment: 2,
            self._link: 6,
            self._attach: 4,
            self._mention_in_description: 3,
            self._archive: 1,
        }

    def happen(self) -> list[Row]:
        """Something happens to an item; nobody may have to be told."""
        if self._undo is not None and self._chance.random() < UNDONE:
            return self._undo_last()
        if self._chance.random() > STAYS:
            self._item = self._chance.choice(self.items)
        (kind,) = self._chance.choices(list(self._kinds), list(self._kinds.values()))
        return kind(self._item, self._chance.choice(self.people))

    def _tell(self, item: Item, actor: Person, change: Change) -> list[Row]:
        return rows_for_subscribers(self._chance, item, actor, change)

    def _undo_last(self) -> list[Row]:
        assert self._undo is not None
        item, done = self._undo
        self._undo = None
        setattr(item, done.field, done.old)
        back = Change("updated", done.field, done.new, done.old, done.new_id, done.old_id)
        return self._tell(item, self._chance.choice(self.people), back)

    def _update(self, item: Item, actor: Person, field: str, new: str) -> list[Row]:
        """Give a plain field another value."""
        old = getattr(item, field)
        if old == new:
            return []
        ids = (make_id(self._chance), make_id(self._chance)) if field == "state" else (None, None)
        change = Change("updated", field, old, new, *ids)
        setattr(item, field, new)
        self._undo = (item, change)
        return self._tell(item, actor, change)

    def _change_state(self, item: Item, actor: Person) -> list[Row]:
        return self._update(item, actor, "state", self._chance.choice(list(STATES)))

    def _change_priority(self, item: Item, actor: Person) -> list[Row]:
        return self._update(item, actor, "priority", self._chance.choice(PRIORITIES))

    def _change_date(self, item: Item, actor: Person) -> list[Row]:
        field = self._chance.choice(("start_date", "target_date"))
        days = self._chance.randint(0, 90)
        new = "" if days < 15 else str(date(2027, 1, 1) + timedelta(days=days))
        return self._update(item, actor, field, new)

    def _change_two_fields(self, item: Item, actor: Person) -> list[Row]:
        return self._change_priority(item, actor) + self._change_date(item, actor)

    def _rename(self, item: Item, actor: Person) -> list[Row]:
        endings = ("", " (again)", " since the last release", ", reported by a customer")
        bare = item.name
        for ending in endings[1:]:
            bare = bare.removesuffix(ending)
        return self._update(item, actor, "name", bare + self._chance.choice(endings))

    def _change_labels(self, item: Item, actor: Person) -> list[Row]:
        label = self._chance.choice(LABELS)
        label_id = make_id(self._chance)
        if label in item.labels:
            item.labels.remove(label)
            return self._tell(item, actor, Change("updated", "labels", label, "", label_id, None))
        item.labels.add(label)
        return self._tell(item, actor, Change("updated", "labels", "", label, None, label_id))

    def _change_assignees(self, item: Item, actor: Person) -> list[Row]:
        person = self._chance.choice(self.people)
        if person in item.assignees:
            item.assignees.remove(person)
            change = Change("updated", "assignees", person.login, "", person.id, None)
        else:
            item.assignees.append(person)
            item.subscribe(person)
            change = Change("updated", "assignees", "", person.login, None, person.id)
        return self._tell(item, actor, change)

    def _change_estimate(self, item: Item, actor: Person) -> list[Row]:
        old, item.estimate = item.estimate, self._chance.choice(("None", "1", "2", "3", "5", "8"))
        if old == item.estimate:
            return []
        return self._tell(item, actor, Change("updated", "estimate_points", old, item.estimate))

    def _relate(self, item: Item, actor: Person) -> list[Row]:
        other = self._chance.choice(self.items)
        if other is item:
            return []
        if item.parent or self._chance.random() < 0.3:
            old, item.parent = item.parent, "" if item.parent else other.reference
            return self._tell(item, actor, Change("updated", "parent", old, item.parent))
        relation = self._chance.choice(_RELATIONS)
        return self._tell(
            item, actor, Change("updated", relation, "", other.reference, other.id, None)
        )

    def _comment(self, item: Item, actor: Person) -> list[Row]:
        comment = Comment(make_id(self._chance), actor, saying(self._chance))
        item.comments.append(comment)
        item.subscribe(actor)
        return self._tell(item, actor, _said(comment))

    def _mention_in_comment(self, item: Item, actor: Person) -> list[Row]:
        person_id, person = mentioned(self._chance, self.people)
        comment = Comment(make_id(self._chance), actor, mention(self._chance, person_id))
        item.comments.append(comment)
        rows = self._tell(item, actor, _said(comment))
        if person is not None and person is not actor:
            change = Change("created", "mention", None, comment.html, None, comment.id)
            rows.append(row_for_mentioned(self._chance, item, actor, person, change))
            item.subscribe(person)
        return rows

    def _edit_comment(self, item: Item, actor: Person) -> list[Row]:
        if not item.comments:
            return self._comment(item, actor)
        comment = self._chance.choice(item.comments[-5:])
        old, comment.html = comment.html, edited(comment.html)
        change = Change("updated", "comment", old, comment.html, comment.id, comment.id, old)
        return self._tell(item, comment.author, change)

    def _delete_comment(self, item: Item, actor: Person) -> list[Row]:
        if not item.comments:
            return self._comment(item, actor)
        comment = item.comments.pop()
        change = Change("deleted", "comment", None, None, comment=comment.html)
        return self._tell(item, comment.author, change)

    def _link(self, item: Item, actor: Person) -> list[Row]:
        if item.links and self._chance.random() < 0.4:
            old = item.links.pop()
            return self._tell(item, actor, Change("deleted", "link", old, ""))
        item.links.append(f"https://docs.example.com/{self._chance.randrange(1000)}")
        change = Change("created", "link", None, item.links[-1], None, make_id(self._chance))
        return self._tell(item, actor, change)

    def _attach(self, item: Item, actor: Person) -> list[Row]:
        if self._chance.random() < 0.25:
            return self._tell(item, actor, Change("deleted", "attachment", None, None))
        path = f"{make_id(self._chance)}-screen shot {self._chance.randrange(100)}.png"
        change = Change("created", "attachment", None, path, None, make_id(self._chance))
        return self._tell(item, actor, change)

    def _mention_in_description(self, item: Item, actor: Person) -> list[Row]:
        person_id, person = mentioned(self._chance, self.people)
        if person is None or person is actor:
            return []
        change = Change("updated", "mention", "<p>hello</p>", mention(self._chance, person_id))
        return [row_for_mentioned(self._chance, item, actor, person, change)]

    def _archive(self, item: Item, actor: Person) -> list[Row]:
        item.is_archived = not item.is_archived
        old, new = (None, "archive") if item.is_archived else ("archive", "restore")
        return self._tell(item, actor, Change("updated", "archived_at", old, new))


def _said(comment: Comment) -> Change:
    return Change("created", "comment", None, comment.html, None, comment.id, comment=comment.html)
