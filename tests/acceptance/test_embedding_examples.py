"""The examples as they stand in their folders: real commands, real workers, real mail."""

from __future__ import annotations

from collections.abc import Iterator
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from tests.support.postgres import execute
from tests.support.shell import ROOT, Terminal
from tests.support.smtp_server import Rule, ScriptedServer
from tests.support.waiting import wait_until

EXAMPLES = ROOT / "examples"

pytestmark = pytest.mark.slow


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


@pytest.fixture
def environment(empty_database_url: str, server: ScriptedServer) -> dict[str, str]:
    return {
        "PIPELINE_DATABASE_URL": empty_database_url,
        "PIPELINE_SMTP_URL": server.url,
        "PIPELINE_MAIL_FROM": "Shop <shop@shop.example>",
        "PIPELINE_STACK_EVERY": "1s",
        "PIPELINE_RECOVER_EVERY": "500ms",
    }


@pytest.fixture
def plain(tmp_path: Path, environment: dict[str, str]) -> Iterator[Terminal]:
    """A terminal in the plain shop's folder, its database set up."""
    with Terminal(tmp_path, EXAMPLES / "plain_shop", environment) as terminal:
        terminal.run(
            'pipeline init && psql -q -v ON_ERROR_STOP=1 "$PIPELINE_DATABASE_URL" -f shop.sql'
        )
        yield terminal


def query(terminal: Terminal, statement: str) -> list[Any]:
    return execute(terminal.environment["PIPELINE_DATABASE_URL"], statement)


def states(terminal: Terminal) -> dict[str, int]:
    return dict(query(terminal, "SELECT state, count(*) FROM pipeline.delivery GROUP BY 1"))


def wait_for_states(terminal: Terminal, wanted: dict[str, int], timeout: float = 30) -> None:
    wait_until(
        lambda: states(terminal) == wanted,
        timeout,
        lambda: f"{wanted}, got {states(terminal)}\n{terminal.output()}",
        interval=0.1,
    )


def texts(server: ScriptedServer) -> dict[str, str]:
    """The plain text of what was received, by recipient: one mail each."""
    found = {}
    for accepted in server.accepted:
        mail = message_from_bytes(accepted.content, policy=policy.SMTP)
        assert isinstance(mail, EmailMessage)
        part = mail.get_body(("plain",))
        assert part is not None
        (recipient,) = accepted.recipients
        assert recipient not in found
        found[recipient] = part.get_content().replace("\r\n", "\n")
    return found


def test_the_plain_shop(plain: Terminal, server: ScriptedServer) -> None:
    """Its job and its mail come out of one transaction, from workers and a scheduler of its own."""
    plain.run("python shop.py move 1 Doing --by 2 && python shop.py move 1 Done --by 2")
    workers = plain.start("dramatiq shop --processes 1 --threads 4")
    scheduler = plain.start("python scheduler.py")
    wait_for_states(plain, {"sent": 2})
    received = texts(server)
    assert received.keys() == {"ann@shop.example", "cid@shop.example"}
    for text, zone in ((received["ann@shop.example"], "E"), (received["cid@shop.example"], "IST")):
        assert text.startswith("SHOP-1 The till does not open\nhttps://shop.example/tickets/1\n")
        assert "\n- State: Todo → Done\n" in text
        assert "\nBo Berg, " in text
        assert zone in text
    wait_until(
        lambda: (
            query(plain, "SELECT words FROM search_index") == [("the till does not open done",)]
        ),
        message=plain.output,
    )
    assert plain.stop(workers) == 0
    assert plain.stop(scheduler) == 0
    assert "pool" not in plain.output()


def test_sigterm_finishes_what_a_shops_worker_has_in_hand(
    plain: Terminal, server: ScriptedServer
) -> None:
    """The mail that is being handed over is, its outcome is written, and the rest waits."""
    query(
        plain,
        "WITH ticket AS (INSERT INTO ticket (subject) SELECT 'Number ' || n"
        " FROM generate_series(1, 30) AS n RETURNING id)"
        " INSERT INTO pipeline.email_notification_log"
        " (receiver_id, triggered_by_id, entity_name, entity_identifier, data)"
        " SELECT '1', '2', 'ticket', id::text, '{\"verb\": \"created\"}' FROM ticket",
    )
    server.add(Rule("dot", hold="gate", skip=3, times=1))
    plain.environment["PIPELINE_SENDERS"] = "1"
    plain.start("python scheduler.py")
    workers = plain.start("dramatiq shop --processes 1 --threads 2")
    server.wait_until_held("gate", timeout=30)
    workers.terminate()
    wait_until(
        lambda: "Worker] [INFO] Shutting down..." in plain.output(),
        timeout=20,
        message=plain.output,
    )
    server.release("gate")
    assert workers.wait(timeout=60) == 0
    sent = server.accepted_count
    assert sent == 4
    assert states(plain) == {"sent": sent, "queued": 30 - sent}
    assert query(plain, "SELECT DISTINCT outcome FROM pipeline.delivery_attempt") == [("sent",)]

    plain.start("dramatiq shop --processes 1 --threads 2")
    wait_for_states(plain, {"sent": 30})
    assert server.accepted_count == 30
    assert server.duplicate_ids() == {}


def test_D09_a_shops_workers_killed_lose_nothing(plain: Terminal, server: ScriptedServer) -> None:
    """Killed before the dot with mail in hand: new workers send it, once."""
    plain.environment["PIPELINE_LEASE"] = "2s"
    plain.run("python shop.py move 1 Done --by 2")
    server.add(Rule("rcpt", hold="gate", times=1))
    plain.start("python scheduler.py")
    workers = plain.start("dramatiq shop --processes 1 --threads 2")
    server.wait_until_held("gate", timeout=30)
    plain.kill(workers)
    server.release("gate")
    plain.start("dramatiq shop --processes 1 --threads 2")
    wait_for_states(plain, {"sent": 2})
    assert sorted(texts(server)) == ["ann@shop.example", "cid@shop.example"]


def test_P1_jobs_and_mail_of_many_transactions_over_a_kill(
    plain: Terminal, server: ScriptedServer
) -> None:
    """Two processes of workers, killed on the way and started again: all of both is done."""
    plain.environment |= {"PIPELINE_LEASE": "2s", "PIPELINE_SENDERS": "2", "PIPELINE_CHUNK": "5"}
    query(
        plain,
        "WITH ticket AS (INSERT INTO ticket (subject) SELECT 'Number ' || n"
        " FROM generate_series(1, 60) AS n RETURNING id)"
        " INSERT INTO watcher SELECT ticket.id, person.id FROM ticket, person",
    )
    plain.start("python scheduler.py")
    workers = plain.start("dramatiq shop --processes 2 --threads 2")
    plain.run(
        "python -c 'import shop, psycopg2\n"
        "connection = psycopg2.connect(shop.URL)\n"
        'for ticket in range(3, 63): shop.move(connection, ticket, "Done", by=2)\''
    )
    server.wait_for_accepted(20, timeout=30)
    plain.kill(workers)
    plain.start("dramatiq shop --processes 2 --threads 2")
    wait_for_states(plain, {"sent": 120}, timeout=60)
    wait_until(
        lambda: query(plain, "SELECT count(*) FROM search_index") == [(60,)],
        timeout=30,
        message=plain.output,
    )
    # A copy more than one a delivery is explained by an uncertain attempt.
    uncertain = query(
        plain, "SELECT count(*) FROM pipeline.delivery_attempt WHERE outcome = 'uncertain'"
    )
    assert 120 <= server.accepted_count <= 120 + uncertain[0][0]
    assert len({accepted.message_id for accepted in server.accepted}) == 120


THEIRS = """
import os
import dramatiq
from dramatiq_pg import PostgresBroker
from psycopg2.extensions import parse_dsn
from pipeline import Pipeline

broker = PostgresBroker(
    url={**parse_dsn(os.environ["PIPELINE_DATABASE_URL"]), "maxconn": 24},
    schema="their jobs",
    prefix="our_",
)
assert "Prometheus" in [type(each).__name__ for each in broker.middleware]
pipeline = Pipeline(broker)
"""


def test_a_shop_with_dramatiqs_default_middleware(
    tmp_path: Path, environment: dict[str, str], server: ScriptedServer, free_port: int
) -> None:
    """Prometheus, results, a schema and prefix of its own, no global broker: all of it goes on."""
    settings = {
        **environment,
        "PIPELINE_QUEUE_SCHEMA": "their jobs",
        "PIPELINE_QUEUE_PREFIX": "our_",
        "dramatiq_prom_port": str(free_port),
        "dramatiq_prom_host": "127.0.0.1",
        "dramatiq_prom_db": str(tmp_path / "prometheus"),
        "dramatiq_prom_lock": str(tmp_path / "prometheus.lock"),
    }
    (tmp_path / "theirs.py").write_text(THEIRS)
    with Terminal(tmp_path, tmp_path, settings) as terminal:
        terminal.run("pipeline init")
        query(terminal, "INSERT INTO pipeline.recipient VALUES ('1', 'ann@shop.example', 'Ann')")
        query(
            terminal,
            "INSERT INTO pipeline.email_notification_log"
            " (receiver_id, entity_name, entity_identifier, data, urgent)"
            " VALUES ('1', 'ticket', '1', '{}', true)",
        )
        terminal.start("dramatiq theirs:broker --processes 1 --threads 2")
        terminal.start("pipeline scheduler")
        wait_for_states(terminal, {"sent": 1})
        rows = query(terminal, 'SELECT DISTINCT queue_name FROM "their jobs".our_queue')
        assert rows == [("pipeline",)]
        assert query(terminal, "SELECT to_regclass('dramatiq.queue')") == [(None,)]
        assert "WARNING" not in terminal.output()
        assert "CRITICAL" not in terminal.output()
    assert server.accepted_count == 1


def test_the_django_shop(
    tmp_path: Path, environment: dict[str, str], server: ScriptedServer
) -> None:
    """Django's transaction, migrations and ORM, beside the pipeline's own processes."""
    with Terminal(tmp_path, EXAMPLES / "django_shop", environment) as terminal:
        terminal.run("pipeline init && python manage.py migrate -v 0")
        terminal.run("python manage.py makemigrations --check --dry-run")
        assert "[1, 2, 3]" in terminal.run("python manage.py make_people")
        terminal.run("python manage.py move 1 Done --by 2")
        workers = terminal.start("dramatiq tracker.tasks --processes 1 --threads 4")
        scheduler = terminal.start("pipeline scheduler")
        wait_for_states(terminal, {"sent": 2})
        wait_until(
            lambda: query(terminal, "SELECT watcher_count FROM tracker_ticket") == [(3,)],
            message=terminal.output,
        )
        assert terminal.stop(workers) == 0
        assert terminal.stop(scheduler) == 0
        assert "pool" not in terminal.output()
    received = texts(server)
    assert received.keys() == {"ann@shop.example", "cid@shop.example"}
    assert "T-1 The till does not open\n" in received["ann@shop.example"]
    assert "\nBob Berg, " in received["ann@shop.example"]
