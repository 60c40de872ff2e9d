"""Short ways to write notifications, and to read what came of them."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from email import message_from_bytes, policy
from email.message import EmailMessage
from html.parser import HTMLParser
from pathlib import Path

from pipeline.digest import Digest, Entity, Notification, make_digest
from pipeline.rendering import Mail, Recipient, render

MORNING = datetime(2026, 12, 1, 9, 0, tzinfo=UTC)
ENTITY = Entity("issue", "17", "ROC-1", "Engine leaks oil", "https://tracker.example.test/ROC-1")
READER = Recipient("reader", "rita@example.com", "Rita Reader", "en", "Europe/Paris")
PEOPLE = {"alice": "Alice Adams", "bob": "Bob Brown", "reader": "Rita Reader"}

_ROWS = Path(__file__).parent.parent / "data" / "sample_rows.jsonl"


def row(
    field: object = None,
    old: object = None,
    new: object = None,
    *,
    minute: float = 0,
    by: str | None = "alice",
    verb: object = "updated",
    **activity: object,
) -> Notification:
    """A notification in the full form, `minute` minutes after nine."""
    at = MORNING + timedelta(minutes=minute)
    told = {
        "verb": verb,
        "field": field,
        "old_value": old,
        "new_value": new,
        "activity_time": at.isoformat(),
        **activity,
    }
    return notification({"issue": {}, "issue_activity": told}, minute=minute, by=by)


def notification(
    data: object, *, minute: float = 0, by: str | None = "alice", oversized: bool = False
) -> Notification:
    """A notification with any data."""
    notification.count += 1  # type: ignore[attr-defined]
    at = MORNING + timedelta(minutes=minute)
    number: int = notification.count  # type: ignore[attr-defined]
    return Notification(f"row-{number}", data, by, at, oversized)


notification.count = 0  # type: ignore[attr-defined]


def digest_of(
    *rows: Notification,
    entity: Entity = ENTITY,
    people: Mapping[str, str] = PEOPLE,
    omitted_count: int = 0,
    base_url: str = "",
    items_shown: int = 50,
) -> Digest:
    return make_digest(
        rows,
        entity=entity,
        people=people,
        omitted_count=omitted_count,
        base_url=base_url,
        items_shown=items_shown,
    )


def mail_of(
    digest: Digest,
    reader: Recipient = READER,
    *,
    mail_from: str = "Tracker <tracker@example.com>",
    html_limit: int = 100_000,
) -> Mail:
    return render(
        digest,
        reader,
        mail_from=mail_from,
        message_id="<one@mail.example.com>",
        date=MORNING,
        html_limit=html_limit,
    )


def told(*rows: Notification) -> list[str]:
    """What the plain text says of these rows: its lines, without title, link and footer."""
    return lines(mail_of(digest_of(*rows)))


def lines(mail: Mail) -> list[str]:
    body = mail.text.split("\n--\n")[0].split("\n")
    return [line for line in body if line.startswith(("- ", "    "))]


def headings(mail: Mail) -> list[str]:
    """The lines that say who and when."""
    return [line for line in mail.text.split("\n") if line.endswith((" CET", " CEST", " UTC"))]


def parsed(mail: Mail) -> EmailMessage:
    """The mail as another program reads it."""
    message = message_from_bytes(mail.content, policy=policy.default)
    assert isinstance(message, EmailMessage)
    return message


def sample_stacks() -> dict[tuple[str, str], list[Notification]]:
    """A real tracker's rows, by receiver and item."""
    stacks: dict[tuple[str, str], list[Notification]] = defaultdict(list)
    for line in _ROWS.read_text().splitlines():
        sample = json.loads(line)
        stacks[sample["receiver_id"], sample["entity_identifier"]].append(
            Notification(
                id=sample["id"],
                data=sample["data"],
                triggered_by_id=sample["triggered_by_id"],
                created_at=datetime.fromisoformat(sample["created_at"]),
            )
        )
    return stacks


class Page(HTMLParser):
    """What a browser would see of a mail: its tags with their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: Iterable[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())

    @property
    def links(self) -> list[str]:
        return [values["href"] for _, values in self.tags if "href" in values]
