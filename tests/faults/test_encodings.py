"""Databases and clients that speak another encoding than UTF-8."""

from __future__ import annotations

import pytest

from pipeline.database import connect, init
from pipeline.embedded import EmbeddedPostgres
from tests.support.installation import Installation
from tests.support.postgres import execute
from tests.support.smtp_server import Rule, ScriptedServer

#: What a server in another country may say: the first is in Latin-1, the second is not.
REPLIES = ("250 2.0.0 Déjà reçu", "250 2.0.0 Принято")


@pytest.mark.parametrize("reply", REPLIES)
def test_P4_a_client_encoding_of_the_shop_makes_nothing_uncertain(
    installation: Installation, monkeypatch: pytest.MonkeyPatch, reply: str
) -> None:
    """`PGCLIENTENCODING` is for the shop's own connections: an outcome must be writable."""
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    with ScriptedServer([Rule("reply", reply=reply)]) as server:
        installation.set(smtp_url=server.url)
        installation.notify_many(3)
        installation.stack()
        assert installation.send() == {"sent": 3}
        assert server.accepted_count == 3
    assert installation.value("SELECT DISTINCT reply FROM pipeline.delivery_attempt") == reply[10:]


@pytest.mark.parametrize("reply", REPLIES)
def test_P4_a_reply_that_the_database_can_not_hold_is_still_an_outcome(
    postgres: EmbeddedPostgres, database_url: str, reply: str
) -> None:
    """A database in Latin-1 gets in ASCII what it has no letters for."""
    execute(database_url, "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    url = postgres.dsn("latin")
    try:
        connection = connect(url)
        init(connection)
        connection.close()
        installation = Installation(url)
        with ScriptedServer([Rule("reply", reply=reply)]) as server:
            installation.set(smtp_url=server.url)
            installation.notify_many(3)
            installation.stack()
            assert installation.send() == {"sent": 3}
            assert server.accepted_count == 3
        assert installation.states() == {"sent": 3}
        installation.close()
    finally:
        execute(database_url, "DROP DATABASE latin WITH (FORCE)")
