"""The README's examples: what is shown there works as it stands."""

from __future__ import annotations

import re
from contextlib import closing
from typing import Any

import dramatiq
import dramatiq.broker
import psycopg2
import pytest
from dramatiq_pg import PostgresBroker

from pipeline.cli import main
from tests.docs.pages import blocks
from tests.support.postgres import execute
from tests.support.shell import ROOT

BLOCKS = list(blocks((ROOT / "README.md").read_text()))


def test_the_statements_and_the_python_run(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From top to bottom, with the cursor and the broker that a reader has."""
    monkeypatch.setenv("PIPELINE_DATABASE_URL", database_url)
    dsn = {**psycopg2.extensions.parse_dsn(database_url), "minconn": 0}
    broker = PostgresBroker(url=dsn, middleware=[], results=False)
    monkeypatch.setattr(dramatiq.broker, "global_broker", broker)

    @dramatiq.actor
    def order_confirmed(order_id: int) -> None:
        """Never runs here."""

    try:
        with closing(psycopg2.connect(database_url)) as connection:
            with connection, connection.cursor() as cursor:
                given: dict[str, Any] = {
                    "cursor": cursor,
                    "broker": broker,
                    "order_confirmed": order_confirmed,
                }
                kinds = [_run(block.kind, block.code, given) for block in BLOCKS]
            assert kinds.count("sql") == 1
            assert kinds.count("python") == 2
    finally:
        broker.pool.closeall()
    rows = execute(database_url, "SELECT receiver_id, data FROM pipeline.email_notification_log")
    assert len(rows) == 2
    assert rows[0] == rows[1]
    assert execute(database_url, "SELECT message ->> 'actor_name' FROM dramatiq.queue") == [
        ("order_confirmed",)
    ]


def _run(kind: str, code: str, given: dict[str, Any]) -> str:
    if kind == "sql":
        given["cursor"].execute(code)
    elif kind == "python":
        exec(code, given)
    else:
        assert kind == "sh"
    return kind


def test_the_commands_exist(capsys: pytest.CaptureFixture[str]) -> None:
    """Every `pipeline` command that is named there can be asked for help."""
    text = (ROOT / "README.md").read_text()
    named = set(re.findall(r"^pipeline (\w+)|`pipeline (\w+)", text, re.MULTILINE))
    for name in {first or second for first, second in named}:
        assert main([name, "--help"]) == 0
    assert "Usage: pipeline" in capsys.readouterr().out
