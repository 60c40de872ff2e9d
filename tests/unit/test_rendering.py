"""What a reader gets: HTML and plain text, in their zone, of bounded size."""

from dataclasses import replace
from html import unescape

import pytest

from pipeline.digest import Digest, Entity
from pipeline.rendering import Recipient
from tests.support.digests import (
    ENTITY,
    MORNING,
    READER,
    Page,
    digest_of,
    headings,
    lines,
    mail_of,
    notification,
    parsed,
    row,
)


def in_zone(name: str | None) -> Recipient:
    return replace(READER, time_zone=name)


def test_both_bodies_say_the_same() -> None:
    """Who, when, what, and the link, in HTML as in plain text."""
    mail = mail_of(
        digest_of(
            row("state", "Todo", "Done"), row("comment", "", "<p>Hi & bye</p>", verb="created")
        )
    )
    page = Page(mail.html)
    assert "Alice Adams 1 Dec 2026, 10:00 CET State: Todo → Done Commented Hi & bye" in unescape(
        page.text.replace("\xa0", "")
    )
    assert lines(mail) == ["- State: Todo → Done", "- Commented:", "    Hi & bye"]
    assert page.links == [ENTITY.url]
    assert "Open ROC-1" in page.text
    assert ENTITY.url is not None
    assert ENTITY.url in mail.text


def test_no_button_without_a_link() -> None:
    """An item that has no page has nothing to open."""
    digest = digest_of(row("state", "A", "B"), entity=replace(ENTITY, url=None))
    assert Page(mail_of(digest).html).links == []


@pytest.mark.parametrize(
    ("rows", "subject"),
    [
        ([("state", "A", "B")], "ROC-1 Engine leaks oil: State A → B"),
        (
            [("start_date", "", "2026-07-01")],
            "ROC-1 Engine leaks oil: Start date set to 2026-07-01",
        ),
        ([("assignees", "", "Bob")], "ROC-1 Engine leaks oil: Assigned to Bob"),
        ([("comment", "", "hi")], "ROC-1 Engine leaks oil: Alice Adams commented"),
        ([("issue", "None", "None")], "ROC-1 Engine leaks oil: Alice Adams made a change"),
        ([("state", "A", "B"), ("name", "C", "D")], "ROC-1 Engine leaks oil: 2 updates"),
    ],
)
def test_the_subject_says_what_happened(rows: list[tuple[str, str, str]], subject: str) -> None:
    """One change is told, several are counted."""
    told = [row(*each, verb=None) for each in rows]
    assert mail_of(digest_of(*told)).subject.startswith(subject)


def test_the_subject_is_bounded() -> None:
    """Long titles and long values are clipped."""
    entity = replace(ENTITY, title="t" * 1000)
    subject = mail_of(digest_of(row("name", "a" * 500, "b" * 500), entity=entity)).subject
    assert len(subject) <= 150
    assert subject.startswith("ROC-1 ttt")


@pytest.mark.parametrize(
    ("zone", "month", "shown"),
    [
        ("Europe/Paris", 7, "1 Jul 2026, 11:00 CEST"),
        ("Europe/Paris", 1, "1 Jan 2026, 10:00 CET"),
        ("America/New_York", 7, "1 Jul 2026, 05:00 EDT"),
        ("Asia/Kolkata", 1, "1 Jan 2026, 14:30 IST"),
        ("Asia/Kathmandu", 1, "1 Jan 2026, 14:45 UTC+5:45"),
        ("America/Sao_Paulo", 1, "1 Jan 2026, 06:00 UTC-3"),
        ("Pacific/Kiritimati", 1, "1 Jan 2026, 23:00 UTC+14"),
        ("Etc/UTC", 1, "1 Jan 2026, 09:00 UTC"),
        ("UTC", 1, "1 Jan 2026, 09:00 UTC"),
    ],
)
def test_T04_times_are_in_the_reader_s_zone(zone: str, month: int, shown: str) -> None:
    """Summer and winter by the zone's own rules."""
    at = MORNING.replace(year=2026, month=month).isoformat()
    mail = mail_of(digest_of(row("state", "A", "B", activity_time=at)), in_zone(zone))
    assert f"Alice Adams, {shown}\n" in mail.text
    assert shown in Page(mail.html).text
    assert f"Times are in {zone}." in mail.text


@pytest.mark.parametrize(
    "zone",
    [
        None,
        "",
        "Mars/Olympus",
        "America",
        "../../etc/passwd",
        "/etc/passwd",
        "\x00",
        "x" * 5000,
        "É",
    ],
)
def test_T04_C11_an_invalid_zone_is_utc_and_says_so(zone: str | None) -> None:
    """No zone, or none that exists: UTC, shown with every time."""
    mail = mail_of(digest_of(row("state", "A", "B")), in_zone(zone))
    assert headings(mail) == ["Alice Adams, 1 Dec 2026, 09:00 UTC"]
    assert "Times are in UTC." in mail.text


def test_H05_markup_in_names_and_titles_is_text() -> None:
    """A name or a title can't put a link into a trusted mail."""
    trap = "<a href=//evil.test>click</a>"
    digest = digest_of(
        row("labels", "", trap),
        row("state", trap, trap + "!", minute=1),
        row(trap, "a", "b", minute=2),
        row("comment", "", trap.replace("//", "javascript://"), verb="created", minute=3),
        row("link", "", "javascript:alert(1)", verb="created", minute=4),
        entity=Entity(trap, trap, trap, trap, None),
        people={"alice": trap},
    )
    mail = mail_of(digest, replace(READER, display_name=trap, id=trap, locale=trap))
    page = Page(mail.html)
    assert page.links == []
    assert f"{trap}" in page.text
    message = parsed(mail)
    assert message["To"].addresses[0].addr_spec == READER.email
    assert len(message["To"].addresses) == 1


def test_H04_line_ends_in_titles_stay_in_their_line() -> None:
    """Nothing in a title or a name becomes a header, or a line of its own."""
    for trap in (
        "a\r\nBcc: x@y",
        "a\nBcc: x@y",
        "a\u2028b",
        "a\x85b",
        "a\x00b",
        "a\ud800b",
        "a\x0bb",
    ):
        digest = digest_of(
            row("name", trap, trap + "2", by="trap"),
            entity=replace(ENTITY, title=trap, reference=trap),
            people={"trap": trap},
        )
        mail = mail_of(digest, replace(READER, display_name=trap), mail_from=f"{trap} <t@e.test>")
        message = parsed(mail)
        assert message["Bcc"] is None
        assert set(message.keys()) == {
            *("From", "To", "Subject", "Date", "Message-ID", "In-Reply-To", "References"),
            *("Auto-Submitted", "X-Auto-Response-Suppress", "MIME-Version", "Content-Type"),
        }
        assert len(mail.subject.splitlines()) == 1
        assert not set("\x00\x85\u2028\ud800\x0b\r") & set(mail.text + mail.html + mail.subject)


@pytest.mark.timeout(60)
def test_B02_the_html_stays_below_the_limit() -> None:
    """Fifty comments of a megabyte: shown in part, none left out of the count."""
    big = "<p>" + "<b>Ж & ж</b> 😀 " * 60_000
    rows = [
        row("comment", "", big, verb="created", minute=m, new_identifier=str(m)) for m in range(70)
    ]
    mail = mail_of(digest_of(*rows, omitted_count=30))
    assert 20_000 < len(mail.html.encode()) < 100_000
    assert "and 50 more" in mail.text
    assert len(mail.content) < 1_000_000


@pytest.mark.parametrize("limit", [100_000, 30_000, 12_000, 7_000])
def test_B02_fewer_items_are_shown_where_values_are_long(limit: int) -> None:
    """Item by item until it fits; what is left out is counted."""
    rows = [row(f"f{m}", "&" * 500, "😀" * 500, minute=m) for m in range(50)]
    mail = mail_of(digest_of(*rows), html_limit=limit)
    assert len(mail.html.encode()) < limit
    shown = sum(line.startswith("- ") for line in mail.text.split("\n"))
    assert f"{50 - shown} more" in mail.text


def test_an_empty_digest_still_renders() -> None:
    """It is skipped by its sender; looking at it must not fail."""
    mail = mail_of(Digest(ENTITY, (), 0))
    assert mail.subject == "ROC-1 Engine leaks oil: 0 updates"


def test_the_same_arguments_give_the_same_bytes() -> None:
    """One Message-ID never comes with two contents."""
    one, other = (mail_of(digest_of(notification(None))) for _ in range(2))
    assert one.content == other.content
