"""The items of the demo's tracker, and what is known of each."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from .people import Person, make_id

WORKSPACE = "acme"

#: States of an item, with the group that the tracker puts each in.
STATES = {
    "Backlog": "backlog",
    "Todo": "unstarted",
    "In Progress": "started",
    "In Review": "started",
    "Done": "completed",
    "Cancelled": "cancelled",
}
PRIORITIES = ("none", "low", "medium", "high", "urgent")
LABELS = ("bug", "customer", "docs", "good first issue", "performance", "security", "ux")

_TITLES = (
    "Checkout forgets the voucher",
    "Search finds nothing with an umlaut: Müller",
    "Login page is slow on Mondays",
    "Export to CSV cuts long names",
    "Dark mode for the settings",
    "Attachments above 10 MB are lost",
    "Invoice shows the wrong currency",
    "Keyboard shortcut for <kbd>New item</kbd>",
    "Time zone of reminders is wrong in summer",
    "Two tabs overwrite each other's edits",
    "Import from the old tracker",
    "Rate limit for the public API",
    "“Remember me” does not",
    "Backup restores into the wrong region",
    "Calendar week starts on Sunday",
    "Mobile menu covers the button",
    "Webhook is called twice",
    "Translate the onboarding",
    "Sort by priority, then by date",
    "Error page without a way back",
)


@dataclass(frozen=True, slots=True)
class Project:
    """A project; `identifier` is the WEB of WEB-12."""

    id: str
    identifier: str


@dataclass(slots=True)
class Comment:
    """A comment as its author wrote it: HTML."""

    id: str
    author: Person
    html: str


@dataclass(slots=True)
class Item:
    """An item as it is now. `subscribers` are told what happens to it."""

    id: str
    project: Project
    sequence_id: int
    name: str
    subscribers: list[Person]
    state: str = "Backlog"
    priority: str = "none"
    start_date: str = ""
    target_date: str = ""
    estimate: str = "None"
    parent: str = ""
    labels: set[str] = field(default_factory=set)
    assignees: list[Person] = field(default_factory=list)
    related: list[str] = field(default_factory=list)
    comments: list[Comment] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    is_archived: bool = False

    @property
    def reference(self) -> str:
        """What people call it: WEB-12."""
        return f"{self.project.identifier}-{self.sequence_id}"

    @property
    def path(self) -> str:
        """Its page, below the tracker's address."""
        return f"/{WORKSPACE}/projects/{self.project.id}/issues/{self.id}"

    def subscribe(self, person: Person) -> None:
        """Tell this person too from now on."""
        if person not in self.subscribers:
            self.subscribers.append(person)


def make_items(chance: random.Random, people: list[Person], count: int) -> list[Item]:
    """Items of three projects, each with a few subscribers."""
    projects = [Project(make_id(chance), identifier) for identifier in ("WEB", "OPS", "MOB")]
    return [
        Item(
            id=make_id(chance),
            project=projects[number % 3],
            sequence_id=number // 3 + 1,
            name=_TITLES[number % len(_TITLES)],
            subscribers=chance.sample(people, chance.randint(2, 5)),
        )
        for number in range(count)
    ]
