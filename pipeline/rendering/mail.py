"""A digest made into a mail: subject, HTML, plain text, and the bytes that go to the server."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, tzinfo
from email.utils import format_datetime
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template, select_autoescape
from markupsafe import Markup

from pipeline.addresses import InvalidAddress, Mailbox, address, mailbox
from pipeline.cleaning import as_name, clean_line, clip
from pipeline.digest import Digest, Entity, wording
from pipeline.digest.items import Item, Passage

from . import mime
from .zones import format_time, zone

SUBJECT_LIMIT = 150
#: How much of each comment is shown, in bytes of its HTML, from generous to terse, together with
#: the most items; the first that stays below the limit is taken.
_SIZES = (
    *((10_000, 4_000), (10_000, 1_600), (10_000, 700), (10_000, 250), (30, 250)),
    *((15, 250), (8, 200), (4, 150), (2, 100), (0, 0)),
)


@dataclass(frozen=True, slots=True)
class Recipient:
    """Who reads it. `time_zone` is an IANA name; anything else means UTC."""

    id: str
    email: str
    display_name: str | None
    locale: str | None
    time_zone: str | None


@dataclass(frozen=True, slots=True)
class Mail:
    """`content` is the whole message (RFC 5322), lines ended by CRLF, not dot-stuffed.

    `envelope_from` and `envelope_to` are bare ASCII addresses for MAIL and RCPT.
    """

    subject: str
    text: str
    html: str
    content: bytes
    envelope_from: str
    envelope_to: str


@dataclass(frozen=True, slots=True)
class _Line:
    pieces: tuple[wording.Piece, ...]
    html: Markup | None
    text: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Group:
    """What the same people did in the same minute."""

    people: str
    time: str
    lines: tuple[_Line, ...]


def render(
    digest: Digest,
    recipient: Recipient,
    *,
    mail_from: str,
    message_id: str,
    date: datetime,
    html_limit: int = 100_000,
) -> Mail:
    """Render a digest for its reader. The same arguments give the same bytes.

    Parameters:
      digest(Digest): What to tell.
      recipient(Recipient): Who reads it.
      mail_from(str): `name@example.com` or `Name <name@example.com>`.
      message_id(str): With or without its angle brackets. Its domain names the thread.
      date(datetime): Aware; goes into the header.
      html_limit(int): The HTML stays below this many bytes of UTF-8, as long as that leaves room
        for the frame (about 6,000). Gmail clips a message at 102 KB.

    Raises:
      InvalidAddress: The recipient's or our own address can't be used; the message names it.
    """
    sender = mailbox(mail_from)
    to = Mailbox(as_name(recipient.display_name, 80) or "", address(recipient.email))
    subject = _subject(digest, recipient.id)
    html = text = ""
    for most_items, passage_limit in _SIZES:
        values = _values(digest, recipient, subject, most_items, passage_limit)
        html = _template("digest.html").render(values)
        if len(html.encode()) < html_limit:
            text = _template("digest.txt").render(values)
            break
    else:
        text = _template("digest.txt").render(values)
    own_id = _message_id(message_id)
    thread_id = _thread_id(digest.entity, own_id)
    headers = [
        ("From", mime.named_address(sender)),
        ("To", mime.named_address(to)),
        ("Subject", mime.unstructured(subject)),
        ("Date", format_datetime(date)),
        ("Message-ID", own_id),
        ("In-Reply-To", thread_id),
        ("References", thread_id),
        # RFC 3834: no out-of-office notes in answer. The second is Exchange's name for it.
        ("Auto-Submitted", "auto-generated"),
        ("X-Auto-Response-Suppress", "All"),
    ]
    content = mime.message(headers, text=text, html=html)
    return Mail(subject, text, html, content, sender.address, to.address)


def _values(
    digest: Digest, recipient: Recipient, subject: str, most_items: int, passage_limit: int
) -> dict[str, object]:
    within, zone_name = zone(recipient.time_zone)
    items = digest.items[:most_items]
    more_count = digest.update_count - len(items)
    return {
        "subject": subject,
        "reference": digest.entity.reference,
        "title": digest.entity.title
        or ("" if digest.entity.reference else _heading(digest.entity)),
        "noun": (as_name(digest.entity.name, 40) or "item").replace("_", " "),
        "url": digest.entity.url,
        "groups": tuple(_groups(items, recipient.id, within, passage_limit)),
        "update_count": digest.update_count,
        "more_count": more_count,
        "preview": _preview(digest, recipient.id),
        "zone_name": zone_name,
    }


def _groups(
    items: tuple[Item, ...], reader_id: str, within: tzinfo, passage_limit: int
) -> Iterator[_Group]:
    people = time = ""
    lines: list[_Line] = []
    for item in items:
        now = wording.people(item.actors, reader_id), format_time(item.at, within)
        if lines and now != (people, time):
            yield _Group(people, time, tuple(lines))
            lines = []
        people, time = now
        lines.append(_line(item, reader_id, passage_limit))
    if lines:
        yield _Group(people, time, tuple(lines))


def _line(item: Item, reader_id: str, passage_limit: int) -> _Line:
    pieces = tuple(wording.pieces(item, reader_id))
    body = item.what.body if isinstance(item.what, Passage) else None
    if body is None:
        return _Line(pieces, None, ())
    # Every character of it was written or escaped by `RichText.html`.
    markup = Markup(body.html(passage_limit))  # noqa: S704
    return _Line(pieces, markup, tuple(body.text(passage_limit).split("\n")))


def _heading(entity: Entity) -> str:
    named = [part for part in (entity.reference, entity.title) if part]
    if not named:
        named = [
            part for part in (as_name(entity.name, 40), as_name(entity.identifier, 40)) if part
        ]
        named[:1] = [part.capitalize() for part in named[:1]]
    return " ".join(named) or "Updates"


def _subject(digest: Digest, reader_id: str) -> str:
    heading = clip(_heading(digest.entity), 100)
    if digest.update_count == 1 and digest.items:
        news = wording.summary(digest.items[0], reader_id)
    else:
        news = f"{digest.update_count} updates"
    return clean_line(f"{heading}: {news}", SUBJECT_LIMIT)


def _preview(digest: Digest, reader_id: str) -> str:
    """What an inbox shows beside the subject."""
    news = [wording.summary(item, reader_id) for item in digest.items[:4]]
    return clip(" · ".join(news), 160)


def _message_id(value: str) -> str:
    """`<left@right>` (RFC 5322 section 3.6.4), whatever was handed in."""
    kept = "".join(c for c in value if "!" <= c <= "~" and c not in "<>")
    return f"<{kept[:900]}>"


def _thread_id(entity: Entity, message_id: str) -> str:
    """The message that all mails about one entity claim to answer, so that they are one thread."""
    name = hashlib.sha256(f"{entity.name}\0{entity.identifier}".encode(errors="replace"))
    domain = message_id[1:-1].rpartition("@")[2] or "localhost"
    return f"<thread.{name.hexdigest()[:32]}@{domain}>"


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("pipeline"),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


@cache
def _template(name: str) -> Template:
    return _environment().get_template(name)


__all__ = ["InvalidAddress", "Mail", "Recipient", "render"]
