"""The message as servers and other programs read it."""

import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from pipeline.addresses import mailbox
from pipeline.digest import Entity
from pipeline.rendering import InvalidAddress, render
from tests.support.digests import ENTITY, MORNING, READER, digest_of, mail_of, parsed, row

DIGEST = digest_of(row("state", "Todo", "Done", by="alice"), row("comment", "", "Grüße", minute=1))


def test_H08_it_says_that_it_is_automatic() -> None:
    """Out-of-office programs are asked not to answer (RFC 3834)."""
    message = parsed(mail_of(DIGEST))
    assert message["Auto-Submitted"] == "auto-generated"
    assert message["X-Auto-Response-Suppress"] == "All"


def test_its_headers() -> None:
    """What was handed in, unchanged."""
    message = parsed(mail_of(DIGEST))
    assert message["From"] == "Tracker <tracker@example.com>"
    assert message["To"] == "Rita Reader <rita@example.com>"
    assert message["Message-ID"] == "<one@mail.example.com>"
    assert message["Date"].datetime == MORNING
    assert message["MIME-Version"] == "1.0"
    assert message["Subject"] == mail_of(DIGEST).subject


def test_its_bodies() -> None:
    """Plain text first, then HTML (RFC 2046 section 5.1.4), as they were rendered."""
    mail = mail_of(DIGEST)
    message = parsed(mail)
    assert message.get_content_type() == "multipart/alternative"
    plain, html = message.iter_parts()
    assert (plain.get_content_type(), html.get_content_type()) == ("text/plain", "text/html")
    assert plain.get_content().splitlines() == mail.text.rstrip().splitlines()
    assert html.get_content().splitlines() == mail.html.rstrip().splitlines()
    assert plain["Content-Transfer-Encoding"] == "quoted-printable"
    assert not message.defects
    assert not plain.defects


def test_C10_lines_are_short_and_end_with_crlf() -> None:
    """998 octets at most (RFC 5321 section 4.5.3.1.6), 78 in bodies, and no bare CR or LF."""
    long = "<p>" + "x" * 50_000 + "</p>"
    digest = digest_of(
        row("comment", "", long, verb="created"), row("name", "y" * 5_000, "Ж" * 5_000, minute=1)
    )
    content = mail_of(digest).content
    assert not re.search(rb"(?<!\r)\n|\r(?!\n)", content)
    head, _, body = content.partition(b"\r\n\r\n")
    assert max(map(len, head.split(b"\r\n"))) <= 998
    assert max(map(len, body.split(b"\r\n"))) <= 78
    assert content.isascii()


@pytest.mark.parametrize("title", ["Ж" * 300, "e" * 300, "😀" * 300, "a =?utf-8?q?=0D=0ABcc:x?= b"])
def test_any_subject_is_read_back_as_it_was(title: str) -> None:
    """Encoded words are at most 75 characters long (RFC 2047 section 2) and split no letter."""
    mail = mail_of(digest_of(row("state", "A", "B"), entity=replace(ENTITY, title=title)))
    assert parsed(mail)["Subject"] == mail.subject
    head = mail.content.partition(b"\r\n\r\n")[0].decode()
    assert all(len(word) <= 75 for word in re.findall(r"=\?utf-8\?b\?[^?]*\?=", head))


@pytest.mark.parametrize(
    "name",
    ["Doe, Jane", 'The "Boss"', "Jörg", "a\\b", "x@y <z@w>", "=?utf-8?q?x?=", "Ж" * 200, None],
)
def test_any_display_name_is_one_name(name: str | None) -> None:
    """Whatever is in it, there is one address and it is the recipient's."""
    mail = mail_of(DIGEST, replace(READER, display_name=name))
    (address,) = parsed(mail)["To"].addresses
    assert address.addr_spec == mail.envelope_to == "rita@example.com"
    shown = (name or "")[:79] + ("…" if name and len(name) > 80 else "")
    # Some versions of the standard library's parser leave blanks between encoded words in there.
    assert address.display_name.replace("Ж Ж", "ЖЖ") == shown


def test_H01_long_ids_stay_whole() -> None:
    """A long Message-ID is neither folded nor encoded."""
    long = f"<{'a' * 400}@mail.example.com>"
    mail = render(DIGEST, READER, mail_from="t@e.test", message_id=long, date=MORNING)
    assert f"\r\nMessage-ID: {long}\r\n".encode() in mail.content


@pytest.mark.parametrize("message_id", ["a@b.test", "<a@b.test>", "<a@b\r\n.test>", " <a@b.test> "])
def test_a_message_id_gets_its_brackets(message_id: str) -> None:
    """With or without brackets, and never with anything else in it."""
    mail = render(DIGEST, READER, mail_from="t@e.test", message_id=message_id, date=MORNING)
    assert parsed(mail)["Message-ID"] == "<a@b.test>"


def test_mails_about_one_entity_are_one_thread() -> None:
    """They claim to answer one message, which stays the same for an entity."""
    one, again = mail_of(DIGEST), mail_of(digest_of(row("name", "a", "b")))
    other = mail_of(digest_of(row("name", "a", "b"), entity=replace(ENTITY, identifier="18")))
    thread = parsed(one)["References"]
    assert thread == parsed(one)["In-Reply-To"] == parsed(again)["References"]
    assert re.fullmatch(r"<thread\.[0-9a-f]{32}@mail\.example\.com>", thread)
    assert parsed(other)["References"] != thread


@pytest.mark.parametrize(
    ("email", "encoded"),
    [
        ("rita@example.com", "rita@example.com"),
        ("o'neil+tag@sub.example.com", "o'neil+tag@sub.example.com"),
        ("a@localhost", "a@localhost"),
        ("a@exämple.com", "a@xn--exmple-cua.com"),
        ("a@STRASSE.de", "a@STRASSE.de"),
        ("a@straße.de", "a@xn--strae-oqa.de"),
        ("a@例え.jp", "a@xn--r8jz45g.jp"),
    ],
)
def test_addresses_that_are_taken(email: str, encoded: str) -> None:
    """ASCII before the @; domains of any script, encoded by IDNA 2008."""
    mail = mail_of(DIGEST, replace(READER, email=email))
    assert mail.envelope_to == encoded
    assert parsed(mail)["To"].addresses[0].addr_spec == encoded


@pytest.mark.parametrize(
    "email",
    [
        "", " ", "not-an-address", "@example.com", "a@", "a@@b.test", "a@b@c.test", "a b@c.test",
        "a@b c.test", " a@b.test", "a@b.test ", "a@b.test\n", "a@b.test\r\nBcc: x@y.test",
        "a\x00@b.test", "jörg@b.test", "a@b..test", ".a@b.test", "a.@b.test", "a..b@c.test",
        "a@-b.test", "a@b_c.test", "a@[127.0.0.1]", '"a b"@c.test', "a@b.test,c@d.test",
        "<a@b.test>", "a@b.test>", f"{'a' * 65}@b.test", f"a@{'b' * 64}.test",
        f"a@{'b.' * 130}test", "a@\ud800.test", "a@\u200b.test", "a@b\u2028c.test", "x" * 10_000,
    ],
)  # fmt: skip
def test_D14_addresses_that_are_refused(email: str) -> None:
    """Clearly, with the value named, before any server is asked."""
    with pytest.raises(InvalidAddress) as caught:
        mail_of(DIGEST, replace(READER, email=email))
    message = str(caught.value)
    assert len(message) < 300
    assert message.isprintable()
    assert ascii(email)[1:20].rstrip("'\"") in message or not email


@pytest.mark.parametrize(
    ("value", "name", "address"),
    [
        ("t@e.test", "", "t@e.test"),
        ("Tracker <t@e.test>", "Tracker", "t@e.test"),
        ('"Acme, \\"Inc\\"" <t@e.test>', 'Acme, "Inc"', "t@e.test"),
        ("<t@e.test>", "", "t@e.test"),
        ("Größe <t@größe.test>", "Größe", "t@xn--gre-6ka8i.test"),
    ],
)
def test_our_own_address_may_have_a_name(value: str, name: str, address: str) -> None:
    """`name@example.com` or `Name <name@example.com>`."""
    assert (mailbox(value).name, mailbox(value).address) == (name, address)
    mail = mail_of(DIGEST, mail_from=value)
    assert mail.envelope_from == address
    assert parsed(mail)["From"].addresses[0].display_name == name


@pytest.mark.parametrize(
    "value", ["", "Tracker", "Tracker <>", "A <a@b.test> <c@d.test>", "<ä@b.test>"]
)
def test_our_own_address_is_checked_too(value: str) -> None:
    """A sender that can't be used is refused in the same way."""
    with pytest.raises(InvalidAddress):
        mail_of(DIGEST, mail_from=value)


def test_the_date_keeps_its_zone() -> None:
    """RFC 5322 section 3.3."""
    mail = render(
        DIGEST,
        READER,
        mail_from="t@e.test",
        message_id="a@b",
        date=datetime(2026, 2, 3, tzinfo=UTC),
    )
    assert b"\r\nDate: Tue, 03 Feb 2026 00:00:00 +0000\r\n" in mail.content


def test_a_thread_has_a_name_whatever_the_entity_is_called() -> None:
    """Names that can't be encoded do no harm."""
    digest = digest_of(row("name", "a", "b"), entity=Entity("\ud800", "\ud800", None, None, None))
    assert parsed(mail_of(digest))["References"]
