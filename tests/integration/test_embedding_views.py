"""People and items read from a shop's own tables, through views in place of ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from email import message_from_bytes, policy
from email.message import EmailMessage

import psycopg2
import pytest

from pipeline.database import init
from tests.support.installation import Installation
from tests.support.postgres import execute
from tests.support.smtp_server import ScriptedServer

SHOP = """
    CREATE TABLE shop_user (
        user_no bigint PRIMARY KEY, first text, last text, mail text, zone text, deleted boolean);
    CREATE TABLE shop_ticket (ticket_no bigint PRIMARY KEY, project text, subject text);
    INSERT INTO shop_user VALUES
        (42, 'Ann', 'Özil', 'ann@people.example', 'Asia/Tokyo', false),
        (7, 'Bob', 'Berg', 'bob@people.example', 'Europe/Paris', false);
    INSERT INTO shop_ticket VALUES (17, 'WEB', 'Engine leaks oil');
"""

VIEWS = """
    CREATE SCHEMA IF NOT EXISTS pipeline;
    DROP TABLE IF EXISTS pipeline.recipient, pipeline.entity;
    CREATE VIEW pipeline.recipient AS
        SELECT user_no::text AS id, mail AS email, first || ' ' || last AS display_name,
            NULL::text AS locale, zone AS time_zone, NOT deleted AS active
        FROM shop_user;
    CREATE VIEW pipeline.entity AS
        SELECT 'ticket'::text AS entity_name, ticket_no::text AS entity_identifier,
            project || '-' || ticket_no AS reference, subject AS title,
            'https://shop.example/tickets/' || ticket_no AS url
        FROM shop_ticket;
"""


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


def apply(url: str) -> None:
    with closing(psycopg2.connect(url)) as connection:
        init(connection)


@pytest.fixture
def shop(empty_database_url: str, server: ScriptedServer) -> Iterator[Installation]:
    """The shop with its tables and views, in a database of its own."""
    execute(empty_database_url, SHOP + VIEWS)
    apply(empty_database_url)
    opened = Installation(empty_database_url, smtp_url=server.url)
    yield opened
    opened.close()


def change(shop: Installation) -> None:
    shop.query(
        "INSERT INTO pipeline.email_notification_log"
        " (receiver_id, triggered_by_id, entity_name, entity_identifier, data) VALUES"
        " ('42', '7', 'ticket', '17', '{\"verb\": \"updated\", \"field\": \"state\","
        ' "old_value": "Doing", "new_value": "Done", "at": "2026-07-01T12:00:00Z"}\')'
    )


def only_mail(server: ScriptedServer) -> EmailMessage:
    (accepted,) = server.accepted
    mail = message_from_bytes(accepted.content, policy=policy.SMTP)
    assert isinstance(mail, EmailMessage)
    return mail


def test_views_are_read_when_the_mail_is_sent(shop: Installation, server: ScriptedServer) -> None:
    """Address, names, time zone, reference, title and link are the shop's own."""
    change(shop)
    assert shop.stack().created_count == 1
    assert shop.send() == {"sent": 1}
    mail = only_mail(server)
    assert str(mail["To"]) == "Ann Özil <ann@people.example>"
    assert "WEB-17" in str(mail["Subject"])
    text = mail.get_body(("plain",))
    assert text is not None
    content = text.get_content()
    for told in ("Engine leaks oil", "https://shop.example/tickets/17", "Bob Berg", "21:00 JST"):
        assert told in content


@pytest.mark.parametrize(
    ("change_of_mind", "state", "reason"),
    [
        ("DELETE FROM shop_user WHERE user_no = 42", "suppressed", "no such recipient: 42"),
        ("UPDATE shop_user SET deleted = true", "suppressed", "recipient 42 is not active"),
        ("UPDATE shop_user SET mail = NULL", "suppressed", "recipient 42 has no address"),
        ("DELETE FROM shop_user WHERE user_no = 7", "sent", "250"),
        ("DELETE FROM shop_ticket", "sent", "250"),
    ],
)
def test_C01_what_is_gone_by_then_is_gone(
    shop: Installation, server: ScriptedServer, change_of_mind: str, state: str, reason: str
) -> None:
    """Who left gets no mail, for a reason that is stored; who or what is only named is left out."""
    change(shop)
    shop.stack()
    shop.query(change_of_mind)
    shop.send()
    delivery = shop.delivery()
    assert delivery["state"] == state
    assert reason in delivery["reason"]
    assert server.accepted_count == (state == "sent")


@pytest.mark.parametrize("steps", [[apply, VIEWS], [VIEWS, apply], [apply, VIEWS, apply]])
def test_views_come_before_or_after_the_schema(
    empty_database_url: str, steps: list[str | Callable[[str], None]]
) -> None:
    """`pipeline init` leaves whatever stands under these names, and may run again."""
    execute(empty_database_url, SHOP)
    for step in steps:
        if isinstance(step, str):
            execute(empty_database_url, step)
        else:
            step(empty_database_url)
    assert execute(
        empty_database_url, "SELECT id, display_name FROM pipeline.recipient ORDER BY id"
    ) == [("42", "Ann Özil"), ("7", "Bob Berg")]
    assert execute(empty_database_url, "SELECT reference FROM pipeline.entity") == [("WEB-17",)]


def test_a_view_that_lacks_a_column_loses_nothing(
    shop: Installation, server: ScriptedServer
) -> None:
    """The delivery waits with the reason, and goes out once the view is mended."""
    shop.set(max_attempts=20)
    change(shop)
    shop.stack()
    shop.query("DROP VIEW pipeline.recipient")
    shop.query("CREATE VIEW pipeline.recipient AS SELECT user_no::text AS id FROM shop_user")
    shop.send()
    delivery = shop.delivery()
    assert delivery["state"] == "deferred"
    assert "recipient.email does not exist" in delivery["reason"]
    shop.query("DROP VIEW pipeline.recipient")
    shop.query(VIEWS.partition(";")[2].partition(";")[2].partition(";")[0])
    shop.query("UPDATE pipeline.delivery SET next_attempt_at = now()")
    shop.recovery.run()
    assert shop.send() == {"sent": 1}
    assert server.accepted_count == 1


def test_an_index_on_the_text_of_the_id_carries_the_look_up(shop: Installation) -> None:
    """A view whose id is a number's text needs one, or each mail reads the whole table."""
    shop.query(
        "INSERT INTO shop_user SELECT n, 'x', 'y', 'z@people.example', 'UTC', false"
        " FROM generate_series(1000, 30000) AS n"
    )
    shop.query("CREATE INDEX ON shop_user ((user_no::text))")
    shop.query("ANALYZE shop_user")
    for condition in ("id = '42'", "id = ANY (ARRAY['42', '7'])"):
        plan = "\n".join(
            line
            for (line,) in shop.query(f"EXPLAIN SELECT * FROM pipeline.recipient WHERE {condition}")
        )
        assert "Seq Scan" not in plan
