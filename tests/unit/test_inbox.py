"""The inbox's parts without their sockets: what is kept, what is read, what a client may send."""

from __future__ import annotations

import asyncio
import email.policy
from email.message import EmailMessage

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.inbox.mailbox import Mailbox
from pipeline.inbox.reading import decoded, header, header_text, read
from pipeline.inbox.receiving import LINE_LIMIT, ReceivingProtocol
from pipeline.smtp.wire import on_the_wire


def mail(number: int, size: int = 0) -> bytes:
    return b"Message-ID: <%d@x>\r\nSubject: Number %d\r\n\r\n%s\r\n" % (number, number, b"x" * size)


def test_the_newest_mails_are_kept_and_all_are_counted() -> None:
    """Memory is bounded by number, the counts go on."""
    mailbox = Mailbox(keep_count=3)
    for number in range(10):
        mailbox.add("a@x", ["b@x"], mail(number))
    assert [each.subject for each in mailbox.messages()] == ["Number 7", "Number 8", "Number 9"]
    assert [each.number for each in mailbox.messages()] == [8, 9, 10]
    assert mailbox.message_count == 10
    assert mailbox.get(7) is None


def test_the_bytes_of_the_mails_kept_are_bounded() -> None:
    """A few enormous mails can't fill the memory; the newest is kept in any case."""
    mailbox = Mailbox(keep_bytes=10_000)
    for number in range(10):
        mailbox.add("a@x", ["b@x"], mail(number, 4_000))
    assert len(mailbox.messages()) == 2
    mailbox.add("a@x", ["b@x"], mail(10, 40_000))
    assert [each.subject for each in mailbox.messages()] == ["Number 10"]


def test_message_ids_that_came_more_than_once_are_known_for_ever() -> None:
    """Also when the mails are no longer kept, or were cleared, and however often they came."""
    mailbox = Mailbox(keep_count=1)
    for number in (1, 2, 1, 3, 1, 3):
        mailbox.add("a@x", ["b@x"], mail(number))
    mailbox.add("a@x", ["b@x"], b"Subject: none\r\n\r\n")
    mailbox.add("a@x", ["b@x"], b"Subject: none\r\n\r\n")
    mailbox.clear()
    assert mailbox.messages() == []
    assert mailbox.duplicate_ids() == {"<1@x>": 3, "<3@x>": 2}
    assert mailbox.message_count == 8
    assert (mailbox.times_seen("<1@x>"), mailbox.times_seen("<2@x>")) == (3, 1)


def test_headers_are_read_from_the_head_only() -> None:
    """Folded, in any case, and never from the body."""
    content = b"X-A: 1\r\nsubject:\r\n  Hello\r\n\tWorld\r\n\r\nMessage-ID: <body@x>\r\n"
    assert header(content, "Subject") == "Hello\tWorld"
    assert header(content, "Message-ID") is None
    assert header(b"", "Subject") is None


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("=?utf-8?q?J=C3=BCrgen?= =?utf-8?b?IOKckw==?=", "Jürgen ✓"),
        ("=?no-such-charset?q?abc?=", "abc"),
        ("=?utf-8?b?a?=", "=?utf-8?b?a?="),
        ("a\x00b\x1b[31m\u202ec\ud800", "a�b�[31m�c�"),
    ],
)
def test_encoded_words_are_read_as_far_as_they_can_be(written: str, shown: str) -> None:
    """Broken ones are shown as they are, and nothing that would change how the rest is shown."""
    assert decoded(written) == shown


def test_a_mail_is_taken_apart() -> None:
    """Headers in order, both bodies, and what is attached."""
    message = EmailMessage()
    message["Subject"] = "Grüße"
    message["To"] = "Ada <ada@example.org>"
    message.set_content("Plain ✓\n")
    message.add_alternative("<p>HTML ✓</p>\n", subtype="html")
    message.add_attachment(b"12345", maintype="application", subtype="pdf", filename="ä.pdf")
    content = message.as_bytes(policy=email.policy.SMTP)
    found = read(content)
    assert ("Subject", "Grüße") in found.headers
    assert found.text == "Plain ✓\r\n" or found.text == "Plain ✓\n"
    assert found.html is not None
    assert "HTML ✓" in found.html
    assert [(each.content_type, each.size) for each in found.attachments] == [
        ("application/pdf", 5)
    ]
    assert header_text(content, "Subject") == "Grüße"


@given(st.binary(max_size=300) | st.text(max_size=100).map(lambda text: text.encode("utf-8")))
def test_no_mail_is_too_broken_to_show(content: bytes) -> None:
    """Whatever comes is read without an exception."""
    headed = b"Content-Type: multipart/mixed; boundary=" + content + b"\r\n\r\n--" + content
    for each in (content, headed, b"Subject: " + content + b"\r\n\r\n"):
        found = read(each)
        for text in (found.text or "", *(value for _, value in found.headers)):
            assert isinstance(text, str)
        header_text(each, "Subject").encode("utf-8")


class Client(asyncio.WriteTransport):
    """The other end of a protocol: what was written to it, and whether it was closed."""

    def __init__(self, mailbox: Mailbox) -> None:
        super().__init__()
        self.written = b""
        self.closed = False
        self.protocol = ReceivingProtocol(mailbox)
        self.protocol.connection_made(self)

    def say(self, data: bytes) -> bytes:
        before = len(self.written)
        self.protocol.data_received(data)
        return self.written[before:]

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


LINES = st.sampled_from([b"", b".", b"..", b".a", b"a", b"a.", b"x" * 200, b"\xff\xfe"])


@given(
    st.lists(st.lists(LINES, max_size=6), min_size=1, max_size=4),
    st.lists(st.integers(1, 60), min_size=1, max_size=30),
)
def test_messages_arrive_whole_however_their_bytes_are_cut(
    bodies: list[list[bytes]], cuts: list[int]
) -> None:
    """Pipelined or byte by byte: the same messages, and one answer each."""
    contents = [b"".join(line + b"\r\n" for line in body) for body in bodies]
    stream = b"EHLO client\r\n"
    for content in contents:
        stream += b"MAIL FROM:<a@x>\r\nRCPT TO:<b@x>\r\nDATA\r\n" + on_the_wire(content) + b".\r\n"
    stream += b"QUIT\r\n"
    mailbox = Mailbox()
    client = Client(mailbox)
    position = turn = 0
    while position < len(stream):
        size = cuts[turn % len(cuts)]
        client.say(stream[position : position + size])
        position, turn = position + size, turn + 1
    assert [each.content for each in mailbox.messages()] == contents
    assert client.written.count(b"250 2.0.0 Taken") == len(contents)
    assert client.closed


def test_commands_out_of_order_are_refused_and_change_nothing() -> None:
    """The dialogue follows RFC 5321: a message needs a sender and a recipient."""
    mailbox = Mailbox()
    client = Client(mailbox)
    for said, answered in [
        (b"HELO x\r\n", b"250"),
        (b"DATA\r\n", b"503"),
        (b"RCPT TO:<b@x>\r\n", b"503"),
        (b"MAIL FROM:a@x\r\n", b"501"),
        (b"mail from:<>\r\n", b"250"),
        (b"MAIL FROM:<a@x>\r\n", b"503"),
        (b"RCPT TO:<>\r\n", b"501"),
        (b"RCPT TO:<b@x> NOTIFY=NEVER\r\n", b"250"),
        (b"RSET\r\n", b"250"),
        (b"DATA\r\n", b"503"),
        (b"NOOP\r\n", b"250"),
        (b"VRFY b\r\n", b"252"),
        (b"TURN\r\n", b"500"),
        (b"\r\n", b"500"),
        (b"AUTH CRAM-MD5\r\n", b"504"),
        (b"AUTH PLAIN\r\n", b"334"),
        (b"AGEAYg==\r\n", b"235"),
        (b"AUTH PLAIN AGEAYg==\r\n", b"235"),
        (b"AUTH LOGIN\r\n", b"334"),
        (b"*\r\n", b"501"),
    ]:
        assert client.say(said)[:3] == answered, said
    assert mailbox.message_count == 0


def test_an_endless_line_ends_the_connection() -> None:
    """Nothing that a client sends can fill the memory."""
    client = Client(Mailbox())
    client.say(b"x" * (LINE_LIMIT + 1))
    assert b"500" in client.written
    assert client.closed


def test_a_message_beyond_the_limit_is_refused_when_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is read to its end without being kept, and the connection goes on."""
    monkeypatch.setattr("pipeline.inbox.receiving.SIZE_LIMIT", 1000)
    mailbox = Mailbox()
    client = Client(mailbox)
    client.say(b"EHLO x\r\nMAIL FROM:<a@x>\r\nRCPT TO:<b@x>\r\nDATA\r\n")
    for _ in range(50):
        client.say(b"x" * 98 + b"\r\n")
    assert client.say(b".\r\n").startswith(b"552")
    client.say(b"MAIL FROM:<a@x>\r\nRCPT TO:<b@x>\r\nDATA\r\n")
    assert client.say(b"small\r\n.\r\n").startswith(b"250")
    assert [each.content for each in mailbox.messages()] == [b"small\r\n"]
