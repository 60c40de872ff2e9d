"""The database crashes: `pg_ctl stop -m immediate`, with `fsync` on."""

from __future__ import annotations

import os
import signal
import tempfile
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg2
import pytest

from pipeline.database import connect, init
from pipeline.embedded import EmbeddedPostgres
from tests.support.installation import Installation
from tests.support.smtp_server import Rule, ScriptedServer
from tests.support.waiting import wait_until

WAL_WRITER = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'"


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    """A Postgres of the test's own, which keeps what it has committed."""
    folder = Path(tempfile.gettempdir(), f"pipeline-crash-{uuid.uuid4().hex[:8]}")
    with EmbeddedPostgres(folder, temporary=True) as started:
        yield started


@pytest.fixture
def installation(server: EmbeddedPostgres) -> Installation:
    """An installation in it."""
    server.create_database("shop")
    url = server.dsn("shop")
    connection = connect(url)
    init(connection)
    connection.close()
    return Installation(url, stack_limit=20, chunk=1, reply_timeout=timedelta(minutes=1))


def back(installation: Installation) -> Installation:
    """The same, after the crash."""
    return Installation(installation.url, smtp_url=installation.settings.smtp_url)


def test_P2_a_dispatch_that_a_crash_takes_back_is_made_again(
    server: EmbeddedPostgres, installation: Installation
) -> None:
    """A pass does not wait for the disk: chunks may be taken back, but each as a whole."""
    installation.notify_many(100)
    # Nothing is written to the disk in the background.
    os.kill(installation.value(WAL_WRITER), signal.SIGSTOP)
    installation.stack()
    server.crash()
    after = back(installation)
    claimed = after.value(
        "SELECT count(*) FROM pipeline.email_notification_log WHERE processed_at IS NOT NULL"
    )
    assert claimed < 100
    assert claimed == after.value("SELECT count(*) FROM pipeline.delivery")
    assert bool(claimed) == bool(after.messages())
    with ScriptedServer() as relay:
        after.set(smtp_url=relay.url)
        after.stack()
        assert after.send() == {"sent": 100}
        assert not relay.duplicate_ids()


def test_P4_what_was_handed_over_is_never_taken_back(
    server: EmbeddedPostgres, installation: Installation
) -> None:
    """The marker waits for the disk, and with it all that was dispatched before."""
    installation.notify_many(100)
    os.kill(installation.value(WAL_WRITER), signal.SIGSTOP)
    installation.stack()

    with ScriptedServer([Rule("dot", hold="gate", times=1)]) as relay:
        installation.set(smtp_url=relay.url)
        with installation.senders(1) as senders:
            relay.wait_until_held("gate")
            server.crash()
            after = back(installation)
            assert after.value("SELECT count(*) FROM pipeline.delivery") == 100
            assert after.states()["transmitting"] == 1
            relay.release("gate")
        assert isinstance(senders[0].exception(), psycopg2.Error)
        wait_until(lambda: after.states().get("sent") == 1, timeout=60)
        after.query("UPDATE pipeline.sender SET lease_expires_at = now()")

        def all_sent() -> bool:
            after.recovery.run()
            after.send()
            return after.states() == {"sent": 100}

        wait_until(all_sent, timeout=60)
        assert relay.accepted_count == 100
        assert not relay.duplicate_ids()
