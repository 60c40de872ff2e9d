"""Tables and indexes stay at a bounded size, whatever passes through them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.support.installation import Installation
from tests.support.smtp_server import ScriptedServer
from tests.support.turns import PATIENT
from tests.support.waiting import wait_until

TABLES = ("email_notification_log", "delivery", "delivery_attempt")


def sizes(installation: Installation) -> dict[str, int]:
    """Bytes of each table with its indexes."""
    return dict(
        installation.query(
            "SELECT name, pg_total_relation_size(('pipeline.' || name)::regclass) "
            "FROM unnest(%s) AS name",
            (list(TABLES),),
        )
    )


@pytest.mark.slow
def test_rounds_of_load_leave_tables_and_indexes_at_the_same_size(
    installation: Installation,
) -> None:
    """What was purged makes room for what comes; nothing grows from round to round."""
    mails, rounds, kept = 100, 12, 3
    seen: list[dict[str, int]] = []
    ends: list[object] = []
    with ScriptedServer(keep_content=False) as server:
        installation.set(smtp_url=server.url, session_limit=1000, keep=timedelta(days=30))
        for turn in range(rounds):
            installation.notify_many(mails, rows=5)
            installation.stack()
            assert installation.send() == {"sent": mails}
            ends.append(installation.value("SELECT now()"))
            if turn >= kept:
                installation.query(
                    "UPDATE pipeline.delivery SET updated_at = now() - interval '31 days' "
                    "WHERE created_at <= %s",
                    (ends[turn - kept],),
                )
                assert installation.recovery.purge() == mails
            installation.query("VACUUM pipeline.email_notification_log, pipeline.delivery")
            installation.query("VACUUM pipeline.delivery_attempt")
            seen.append(sizes(installation))
    for table in TABLES:
        settled, last = seen[rounds // 2][table], seen[-1][table]
        assert last <= settled * 1.2, (table, [size[table] for size in seen])
    assert installation.value("SELECT count(*) FROM pipeline.delivery") == mails * kept


def test_marking_rows_as_sent_touches_no_index(installation: Installation) -> None:
    """There is room beside each row for its next version: the update is a heap-only one."""
    # Whoever analyses the table meanwhile has a snapshot, for which old versions are kept.
    installation.query("ALTER TABLE pipeline.email_notification_log SET (autovacuum_enabled = off)")
    with ScriptedServer() as server:
        installation.set(smtp_url=server.url, **PATIENT)
        installation.notify_many(50, rows=4)
        installation.stack()
        assert installation.send() == {"sent": 50}
    updates = (
        "SELECT pg_stat_force_next_flush(), n_tup_hot_upd, n_tup_upd FROM pg_stat_user_tables "
        "WHERE relid = 'pipeline.email_notification_log'::regclass"
    )
    # A session reports what it did when it ends, a moment after its connection was closed.
    wait_until(
        lambda: installation.query(updates)[0][1] >= 200 * 0.9,
        message=lambda: str(installation.query(updates)),
    )


def test_the_tables_that_change_all_the_time_are_vacuumed_early(installation: Installation) -> None:
    """A fifth of a large table may not be dead before anybody looks."""
    options = dict(
        installation.query(
            "SELECT relname, reloptions FROM pg_class "
            "WHERE relnamespace = 'pipeline'::regnamespace AND relname = ANY (%s)",
            (list(TABLES),),
        )
    )
    for table in TABLES:
        assert "autovacuum_vacuum_scale_factor=0.02" in options[table]
        assert "fillfactor=50" in options[table]
