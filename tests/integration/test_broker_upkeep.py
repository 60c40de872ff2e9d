"""Finished messages are deleted in time, and the table stays small."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import psycopg2
import pytest
from dramatiq_pg import generate_init_sql

from pipeline.broker import PostgresBroker
from pipeline.outbox import enqueue
from tests.support.broker import actor, mended_broker, messages, running_worker
from tests.support.postgres import execute


@pytest.fixture
def url(empty_database_url: str) -> str:
    """The address of a database with dramatiq-pg's table."""
    execute(empty_database_url, generate_init_sql())
    return empty_database_url


@pytest.fixture
def broker(url: str) -> Iterator[PostgresBroker]:
    """A mended broker that keeps done messages a day, failed ones a week, and audits for a year."""
    with mended_broker(
        url,
        keep_done=timedelta(days=1),
        keep_rejected=timedelta(days=7),
        keep_by_queue={"audit": timedelta(days=365), "chatter": timedelta(minutes=5)},
    ) as made:
        yield made


def insert(url: str, queue_name: str, state: str, age: str, count: int = 1) -> None:
    """Put finished messages of some age into the table."""
    execute(
        url,
        "INSERT INTO dramatiq.queue (message_id, queue_name, state, mtime, message)"
        " SELECT gen_random_uuid(), %s, %s, (now() AT TIME ZONE 'UTC') - %s::interval, '{}'"
        " FROM generate_series(1, %s)",
        (queue_name, state, age, count),
    )


def test_what_is_old_enough_goes_by_state_and_queue(url: str, broker: PostgresBroker) -> None:
    """Each final state and each named queue has its own age; what isn't final never goes."""
    gone = [
        ("default", "done", "25 hours"),
        ("default", "rejected", "8 days"),
        ("chatter", "done", "6 minutes"),
        ("chatter", "rejected", "6 minutes"),
        ("audit", "done", "366 days"),
    ]
    kept = [
        ("default", "done", "23 hours"),
        ("default", "rejected", "6 days"),
        ("chatter", "done", "4 minutes"),
        ("audit", "done", "364 days"),
        ("default", "queued", "400 days"),
        ("default.DQ", "queued", "400 days"),
        ("default", "consumed", "400 days"),
    ]
    for row in gone + kept:
        insert(url, *row)
    assert broker.upkeep.purge() == len(gone)
    assert sorted((m[0], m[1]) for m in messages(url).values()) == sorted(k[:2] for k in kept)


def test_a_result_is_kept_until_its_time(url: str, broker: PostgresBroker) -> None:
    """A finished message whose result may still be asked for stays."""
    insert(url, "default", "done", "2 days", count=2)
    execute(
        url,
        "UPDATE dramatiq.queue SET result = '1', result_ttl = (now() AT TIME ZONE 'UTC')"
        " + interval '1 hour' WHERE message_id = (SELECT message_id FROM dramatiq.queue LIMIT 1)",
    )
    assert broker.upkeep.purge() == 1
    assert len(messages(url)) == 1


def test_a_row_that_somebody_has_locked_is_passed_over(url: str, broker: PostgresBroker) -> None:
    """The purge waits for nobody, and takes the row the next time."""
    insert(url, "default", "done", "2 days", count=3)
    with psycopg2.connect(url) as other:
        other.cursor().execute("SELECT FROM dramatiq.queue LIMIT 1 FOR UPDATE")
        assert broker.upkeep.purge() == 2
        other.rollback()
    assert broker.upkeep.purge() == 1


def test_c12_many_finished_messages_go_in_small_batches(url: str, broker: PostgresBroker) -> None:
    """Thousands are deleted 500 at a time, each batch in a transaction of its own."""
    insert(url, "default", "done", "2 days", count=1700)
    execute(url, "CREATE TABLE batches (xid xid8, count bigint)")
    execute(
        url,
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO batches SELECT pg_current_xact_id(), count(*) FROM gone; RETURN NULL;"
        " END $$",
    )
    execute(
        url,
        "CREATE TRIGGER note AFTER DELETE ON dramatiq.queue"
        " REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION note()",
    )
    assert broker.upkeep.purge() == 1700
    batches = execute(url, "SELECT count FROM batches WHERE count > 0 ORDER BY xid")
    assert [row[0] for row in batches] == [500, 500, 500, 200]


@pytest.mark.slow
def test_c12_a_weeks_load_leaves_the_table_as_small_as_a_days(url: str) -> None:
    """Day after day of messages that are sent, run and purged: table and indexes stop growing."""
    with mended_broker(url, keep_done=timedelta(days=1)) as broker:
        broker.prepare()
        work = actor(broker, lambda *_: None, actor_name="work")
        sizes = []
        for _ in range(10):
            with closing(psycopg2.connect(url)) as shop, shop:
                enqueue(shop.cursor(), *[work.message(i) for i in range(1500)], broker=broker)
            with running_worker(broker):
                broker.join("default", timeout=60_000)
            # A day passes, and autovacuum comes by.
            execute(url, "UPDATE dramatiq.queue SET mtime = mtime - interval '12 hours'")
            broker.upkeep.purge()
            execute(url, "VACUUM dramatiq.queue")
            ((size,),) = execute(url, "SELECT pg_total_relation_size('dramatiq.queue')")
            sizes.append(size)
        assert 1500 <= len(messages(url)) <= 4500
    assert max(sizes[5:]) <= 1.6 * max(sizes[:5]), sizes
