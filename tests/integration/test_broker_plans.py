"""Each statement of the consumers' session is carried by the index that its file names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing

import psycopg2
import pytest

from pipeline.broker.queries import Queries
from pipeline.broker.session import Session
from tests.support.broker import mended_broker
from tests.support.postgres import execute

ID = "00000000-0000-0000-0000-000000000000"

PLANS = {
    "claim": (
        f"'{{default}}', '{{16}}', '{{-infinity}}', '{{{ID}}}', '{{}}'",
        {"queue_claim", "queue_pkey"},
    ),
    "settle": (f'\'[{{"id": "{ID}"}}]\'', {"queue_pkey"}),
    "states": (f"'{{{ID}}}'", {"queue_pkey"}),
    "reclaim": (f"'{{{ID}}}', '{{default}}', '{{1}}', '{{1}}'", {"queue_pkey"}),
    "look": ("'{default}', '{}'", {"queue_state_mtime_idx"}),
    "take_up": (f"'{{{ID}}}', '{{1}}', '5'", {"queue_pkey"}),
    "promote": ("'{default.DQ}'", {"queue_delayed", "queue_pkey"}),
}


@pytest.fixture(scope="module", params=["planned when empty", "planned when full"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    """A session on a table with 20,000 messages of each kind, planned before or after they came."""
    from tests.support.postgres import fresh_database

    with fresh_database(request.getfixturevalue("postgres"), "template1") as url:
        with mended_broker(url) as broker:
            broker.prepare()
        with closing(psycopg2.connect(url)) as connection:
            opened = Session(connection, Queries("dramatiq", ""), [])
            if request.param == "planned when empty":
                with connection.cursor() as cursor:
                    cursor.execute("SET plan_cache_mode = force_generic_plan")
                    for name, (arguments, _) in PLANS.items():
                        cursor.execute(f"EXPLAIN EXECUTE {name} ({arguments})")
            for state, queue_name in (
                ("queued", "default"),
                ("queued", "default.DQ"),
                ("consumed", "default"),
                ("done", "default"),
            ):
                execute(
                    url,
                    "INSERT INTO dramatiq.queue (message_id, queue_name, state, message)"
                    ' SELECT gen_random_uuid(), %s, %s, \'{"options": {"eta": 1}}\''
                    " FROM generate_series(1, 20000)",
                    (queue_name, state),
                )
            execute(url, "VACUUM ANALYZE dramatiq.queue")
            with connection.cursor() as cursor:
                cursor.execute("SET plan_cache_mode = force_generic_plan")
            yield opened


@pytest.mark.parametrize("name", PLANS)
def test_a_statement_reads_the_table_through_its_indexes_only(session: Session, name: str) -> None:
    """No scan of the table, no join that reads a whole index, whatever the statistics say."""
    arguments, indexes = PLANS[name]
    with session.connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN EXECUTE {name} ({arguments})")
        plan = "\n".join(row[0] for row in cursor.fetchall())
    assert "Seq Scan" not in plan, plan
    assert "Hash" not in plan, plan
    assert "Merge" not in plan, plan
    assert set(re.findall(r"using (\w+)", plan)) == indexes, plan
    for condition in re.findall(r"Index Scan using queue_pkey.*\n\s+(.*)", plan):
        assert condition.startswith("Index Cond: (message_id ="), plan
