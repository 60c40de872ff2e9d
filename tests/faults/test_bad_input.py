"""Whatever rows, recipients and servers hold: a correct mail, or a final state with a reason."""

from __future__ import annotations

import email
import email.policy
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg2.extras import Json

from tests.faults.walk import aftermath, ledger
from tests.faults.walk.operations import settings_for
from tests.faults.walk.walker import TABLES
from tests.support.installation import Installation
from tests.support.smtp_server import Rule, ScriptedServer

FUZZ = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

#: What Postgres can store: no NUL, no half of a surrogate pair.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=80)

NASTY = st.sampled_from(
    [
        *("", " ", "None", "null", "\r\nBcc: evil@x.example", "a\u2028b", "\u202egnp.exe"),
        *("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7 * 7 }}", "%s%(x)s"),
        *("x" * 5000, "é" * 3000, "\x1b[31m", "a\tb\vc", ".\r\n.\r\n", "=?utf-8?q?x?="),
        *("javascript:alert(1)", "<a href='javascript:x'>y</a>", "\ufeff", "1e999", "-0"),
    ]
)

WORDS = TEXT | NASTY

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)

ACTIVITY = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(
            ["verb", "field", "old_value", "new_value", "comment", "at", "id", "actor"],
            VALUES,
        ),
        "issue_comment": VALUES,
    },
)

DATA = VALUES | ACTIVITY | st.fixed_dictionaries({"issue": VALUES, "issue_activity": ACTIVITY})

ADDRESSES = WORDS | st.sampled_from(
    [
        *("a@b.example", "a@b", "@b.example", "a@", "a b@c.example", "a@b.example, c@d.example"),
        *("<a@b.example>", '"a b"@c.example', "a@[127.0.0.1]", "ü@b.example", "a@bücher.example"),
        *("a@b.example\r\nRCPT TO:<x@y.example>", "a@b.example>", "x" * 300 + "@b.example"),
        *("a@b..example", ".a@b.example", "a@-b.example", "A@B.EXAMPLE", "a@b.example ", "a@@b.c"),
    ]
)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


def clean(installation: Installation, server: ScriptedServer, **changes: Any) -> int:
    """Begin anew.

    Returns:
      How many mails the server has taken before.
    """
    tables = ", ".join(f"pipeline.{table}" for table in TABLES.split())
    installation.query(f"TRUNCATE {tables}, pipeline.entity, dramatiq.queue")
    installation.settings = settings_for(installation.url, server.url, "resend")
    installation.set(**changes)
    server.clear()
    return len(server.accepted)


@pytest.mark.slow
@FUZZ
@given(
    data=st.lists(DATA, min_size=1, max_size=4),
    address=ADDRESSES,
    names=st.tuples(WORDS, WORDS, WORDS, WORDS, WORDS, WORDS),
)
def test_any_row_and_any_recipient_end_in_a_mail_or_a_reason(
    installation: Installation,
    server: ScriptedServer,
    data: list[Any],
    address: str,
    names: tuple[str, ...],
) -> None:
    """No exception that repeats for ever, and nothing that gets into headers or the envelope."""
    seen = clean(installation, server)
    display_name, locale, time_zone, reference, title, url = names
    installation.query(
        "INSERT INTO pipeline.recipient VALUES ('odd', %s, %s, %s, %s, true)",
        (address, display_name, locale, time_zone),
    )
    installation.query(
        "INSERT INTO pipeline.entity VALUES ('issue', '1', %s, %s, %s)", (reference, title, url)
    )
    for each in data:
        installation.query(
            "INSERT INTO pipeline.email_notification_log "
            "(receiver_id, triggered_by_id, entity_name, entity_identifier, data) "
            "VALUES ('odd', 'odd', 'issue', '1', %s)",
            (Json(each),),
        )
    assert aftermath.finish(installation) <= 2, installation.delivery()["reason"]
    found = installation.delivery()
    assert found["state"] in ("sent", "failed", "skipped", "suppressed")
    assert found["reason"]
    mails = server.accepted[seen:]
    assert len(mails) == (found["state"] == "sent")
    for mail in mails:
        assert len(mail.recipients) == 1
        assert b"\n" not in mail.content.replace(b"\r\n", b"")
        assert max(map(len, mail.content.split(b"\r\n"))) <= 998
        message = email.message_from_bytes(mail.content, policy=email.policy.default)
        assert not message.defects
        assert message["Bcc"] is None
        assert len(message.get_all("To") or []) == len(message.get_all("Subject") or []) == 1
        html = message.get_body(("html",))
        assert html is not None
        shown = html.get_content().lower()
        assert "<script" not in shown
        assert "onerror=alert" not in shown.replace("&quot;", '"') or "<img" not in shown
        assert 'href="javascript' not in shown


REPLIES = st.one_of(
    st.binary(max_size=80),
    st.builds(
        lambda code, text: f"{code} {text}\r\n".encode("utf-8", "replace"),
        st.integers(0, 999),
        WORDS,
    ),
    st.sampled_from(
        [
            *(b"250-one\r\n250-two\r\n250 three\r\n", b"250-one\r\n550 two\r\n", b"550\r\n"),
            *(b"451 " + b"x" * 600 + b"\r\n", b"354 \xff\xfe\r\n", b"\r\n\r\n", b"250"),
            *(b"5.1.1 550 no\r\n", b"550 5.1.1\x00 nul\r\n", b"421 \xe2\x80\xa8 bye\r\n"),
        ]
    ),
)


@pytest.mark.slow
@settings(FUZZ, max_examples=30)
@given(
    stage=st.sampled_from(["connect", "ehlo", "mail", "rcpt", "data", "dot", "reply"]),
    raw=REPLIES,
    closes=st.booleans(),
)
def test_any_answer_of_a_server_is_come_over(
    installation: Installation, server: ScriptedServer, stage: Any, raw: bytes, closes: bool
) -> None:
    """One odd answer, and then good ones: the ledger is right, whatever was answered."""
    seen = clean(
        installation,
        server,
        command_timeout=timedelta(milliseconds=200),
        connect_timeout=timedelta(milliseconds=200),
        reply_timeout=timedelta(milliseconds=200),
    )
    if stage in ("dot", "reply"):
        # A server that took a mail and says no, or the reverse, is not believed to be odd: it lies.
        stage = {b"2": "reply", b"4": "dot", b"5": "dot"}.get(raw[:1], stage)
    server.add(Rule(stage, raw=raw, do="close" if closes else None, times=1))
    installation.add_person("ann")
    installation.notify("ann", field="field 1 of it")
    aftermath.finish(installation)
    assert ledger.check(installation, server.accepted[seen:]) == []


@pytest.mark.slow
def test_ten_thousand_rows_of_one_stack_make_one_mail_of_bounded_size(
    installation: Installation, server: ScriptedServer
) -> None:
    """It shows some and counts the rest."""
    clean(installation, server)
    installation.notify_many(1, rows=10_000)
    aftermath.finish(installation)
    (mail,) = server.accepted
    assert len(mail.content) < 250_000
    assert installation.delivery()["notification_count"] == 10_000
    message = email.message_from_bytes(mail.content, policy=email.policy.default)
    text = message.get_body(("plain",))
    assert text is not None
    assert re.search("and 9,?950 more", text.get_content())


def test_nothing_is_tried_without_a_limit(
    installation: Installation, server: ScriptedServer
) -> None:
    """A server that says `later` for ever: the attempts are used up, and the reason is kept."""
    clean(installation, server, max_attempts=4)
    server.add(Rule("rcpt", reply="451 4.7.1 Later"))
    installation.add_person("ann")
    installation.notify("ann")
    aftermath.finish(installation)
    found = installation.delivery()
    assert (found["state"], found["attempt_count"]) == ("failed", 4)
    assert "451 4.7.1 Later" in found["reason"]


def test_a_server_that_loses_every_reply_is_not_sent_to_for_ever(
    installation: Installation, server: ScriptedServer
) -> None:
    """Each copy is explained, and there are no more of them than attempts."""
    seen = clean(installation, server, max_attempts=3)
    server.add(Rule("reply", do="close"))
    installation.add_person("ann")
    installation.notify("ann", field="field 1 of it")
    aftermath.finish(installation)
    assert installation.states() == {"failed": 1}
    assert server.accepted_count == 3
    assert ledger.check(installation, server.accepted[seen:]) == []
