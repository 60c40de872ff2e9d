"""The queries that run all the time use the indexes made for them, however large the tables are."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from pipeline.database import SESSION_LIMITS, query, transaction
from pipeline.embedded import EmbeddedPostgres
from pipeline.replies import Outcome, Stage
from pipeline.settings import Settings
from pipeline.settlement import GROWTH, Settlement, columns
from pipeline.stacking import Place, claim_parameters
from tests.support.installation import Installation
from tests.support.postgres import fresh_database

SHORT = timedelta(seconds=1)
LONG = timedelta(hours=1)
SOMEBODY = "00000000-0000-0000-0000-000000000000"

#: Deliveries that are over, a backlog of those that wait, some of each other state, and their rows.
FINISHED = """
INSERT INTO pipeline.delivery (
    receiver_id, entity_name, entity_identifier, state, message_id, created_at, updated_at)
SELECT 'p' || n %% 5000, 'issue', n::text, 'sent', '<' || n || '@x>',
    now() - n * interval '1 second', now() - n * interval '1 second'
FROM generate_series(1, %s) AS n
"""
OPEN = """
INSERT INTO pipeline.delivery (
    receiver_id, entity_name, entity_identifier, state, message_id, next_attempt_at,
    lease_expires_at, attempt_token)
SELECT 'p' || n, 'issue', state || n, state, '<' || n || state || '@x>',
    now() + (n - 50) * interval '1 second', now() + (n - 50) * interval '1 second',
    gen_random_uuid()
FROM unnest(ARRAY['queued', 'deferred', 'sending', 'transmitting', 'uncertain', 'held'])
    WITH ORDINALITY AS known (state, place),
    generate_series(1, CASE WHEN place <= 2 THEN %s ELSE 100 END) AS n
"""
PROCESSED = """
INSERT INTO pipeline.email_notification_log (
    receiver_id, entity_name, entity_identifier, data, processed_at, sent_at, delivery_id)
SELECT receiver_id, entity_name, entity_identifier, '{}', now(), now(), id
FROM pipeline.delivery, generate_series(1, 2)
"""
PENDING = """
INSERT INTO pipeline.email_notification_log (
    receiver_id, entity_name, entity_identifier, data, urgent)
SELECT 'p' || n %% 5000, 'issue', n %% 700, '{}', n %% 97 = 0
FROM generate_series(1, %s) AS n
"""
ATTEMPTS = """
INSERT INTO pipeline.delivery_attempt (
    delivery_id, attempt_number, attempt_token, worker, outcome)
SELECT id, 1, coalesce(attempt_token, gen_random_uuid()), 'w', 'sent'
FROM pipeline.delivery
"""


@pytest.fixture(scope="module", params=[60_000, pytest.param(1_000_000, marks=[pytest.mark.long])])
def full(
    request: pytest.FixtureRequest, postgres: EmbeddedPostgres, _template: None
) -> Iterator[Installation]:
    """Tables as they are after months: nearly everything in them is over."""
    with fresh_database(postgres) as url:
        installation = Installation(url)
        installation.query(FINISHED, (request.param,))
        installation.query(OPEN, (request.param // 20,))
        installation.query(PROCESSED)
        installation.query(PENDING, (request.param // 5,))
        installation.query(ATTEMPTS)
        installation.query(
            "INSERT INTO pipeline.recipient SELECT 'p' || n FROM generate_series(1, 5000) AS n"
        )
        installation.query("VACUUM (ANALYZE)")
        yield installation
        installation.close()


def plan(
    installation: Installation, name: str, parameters: dict[str, Any], *, walks: bool
) -> tuple[set[str], set[str], set[str]]:
    """The indexes that a query would use, the tables it would read as a whole, kinds of steps."""
    with transaction(installation.connection, walks=walks) as cursor:
        cursor.execute("EXPLAIN (FORMAT JSON) " + query(name), parameters)
        row = cursor.fetchone()
    assert row is not None
    explained = json.loads(row[0]) if isinstance(row[0], str) else row[0]
    indexes: set[str] = set()
    scanned: set[str] = set()
    kinds: set[str] = set()

    def walk(node: dict[str, Any]) -> None:
        if "Index Name" in node:
            indexes.add(node["Index Name"])
        kinds.add(node["Node Type"])
        if node["Node Type"] == "Seq Scan":
            scanned.add(node["Relation Name"])
        for child in node.get("Plans", []):
            walk(child)

    walk(explained[0]["Plan"])
    return indexes, scanned, kinds


KEY = {"id": SOMEBODY, "token": SOMEBODY}
CLAIM = claim_parameters(
    Settings(stack_limit=500), urgent_only=False, place=Place(("p17", "issue", "5"))
)
HELD = {"ids": [SOMEBODY] * 8, "tokens": [SOMEBODY] * 8}
SETTLED = columns([Settlement("sent", "250", Outcome.SENT, Stage.REPLY, 250, reply="Ok")] * 8)
RETRIES = {
    "policy": "resend", "max_attempts": 3, "retry_base": SHORT, "retry_cap": LONG,
    "growth": GROWTH,
}  # fmt: skip
READ = {"rows": 1000, "row_bytes": 1 << 18, "total_bytes": 1 << 22}

#: Run with `walks=True`.
WALKS = {
    "stack_claim", "delivery_claim", "delivery_waiting", "recover_sending", "recover_transmitting",
    "recover_uncertain", "recover_deferred", "recover_expired", "purge_deliveries",
}  # fmt: skip

QUERIES: list[tuple[str, dict[str, Any], set[str]]] = [
    ("stack_claim", {**CLAIM, "urgent_only": False},
     {"email_notification_log_pending", "delivery_joinable"}),
    ("stack_claim", {**CLAIM, "urgent_only": True},
     {"email_notification_log_urgent", "email_notification_log_pending", "delivery_joinable"}),
    ("stacking_owed", {}, {"email_notification_log_urgent"}),
    ("delivery_claim",
     {"limit": 25, "lease": SHORT, "after_due": -math.inf, "after_id": SOMEBODY},
     {"delivery_queued", "delivery_pkey"}),
    ("delivery_waiting", {"limit": 100, "patience": SHORT}, {"delivery_queued"}),
    ("delivery_begin", {**HELD, "workers": ["w"] * 8, "lease": SHORT},
     {"delivery_pkey", "delivery_attempt_pkey"}),
    ("delivery_mark", {**HELD, "lease": SHORT}, {"delivery_pkey", "delivery_attempt_pkey"}),
    ("delivery_settle", {**HELD, **SETTLED},
     {"delivery_pkey", "delivery_attempt_pkey", "email_notification_log_delivery"}),
    ("delivery_extend", {"ids": [SOMEBODY] * 25, "tokens": [SOMEBODY] * 25, "lease": SHORT},
     {"delivery_pkey"}),
    ("delivery_absorb",
     {**KEY, **CLAIM, "states": ["sending"], "silent_only": False},
     {"delivery_pkey", "delivery_joinable", "email_notification_log_delivery"}),
    ("delivery_content",
     {"ids": [SOMEBODY], "receiver_ids": ["p1"], "entity_names": ["issue"],
      "entity_identifiers": ["1"]}, {"recipient_pkey"}),
    ("delivery_notifications", {"ids": [SOMEBODY] * 8, **READ},
     {"email_notification_log_delivery"}),
    ("recover_sending", {"limit": 500}, {"delivery_in_hand"}),
    ("recover_transmitting", {"limit": 500}, {"delivery_in_hand"}),
    ("recover_uncertain", {"limit": 500, **RETRIES}, {"delivery_unsettled"}),
    ("recover_deferred", {"limit": 500}, {"delivery_deferred"}),
    ("recover_expired", {"limit": 500}, {"delivery_expiry"}),
    ("purge_deliveries", {"limit": 500, "keep": LONG},
     {"delivery_final", "email_notification_log_delivery"}),
    ("deliveries_list", {"states": None, "receiver": None, "limit": 50},
     {"delivery_final", "delivery_unsent", "delivery_unsettled", "delivery_in_hand"}),
    ("deliveries_list", {"states": ["failed"], "receiver": None, "limit": 50},
     {"delivery_unsent"}),
    ("status_due", {}, {"delivery_queued"}),
    ("status_notifications", {}, {"email_notification_log_pending"}),
]  # fmt: skip

#: Tables that may be read as a whole: none of these.
LARGE = {"delivery", "delivery_attempt", "email_notification_log"}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "parameters", "wanted"),
    QUERIES,
    ids=[
        f"{name}{'-urgent' if of.get('urgent_only') else ''}{'-failed' if of.get('states') else ''}"
        for name, of, _ in QUERIES
    ],
)
def test_a_query_is_carried_by_its_index(
    full: Installation, name: str, parameters: dict[str, Any], wanted: set[str]
) -> None:
    """The planner takes the index that the query's file names, and reads no large table whole."""
    indexes, scanned, _ = plan(full, name, parameters, walks=name in WALKS)
    assert wanted <= indexes, (indexes, scanned)
    assert not scanned & LARGE


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("stack_claim", "email_notification_log_pending"),
        ("delivery_claim", "delivery_queued"),
        ("delivery_waiting", "delivery_queued"),
        ("recover_deferred", "delivery_deferred"),
        ("recover_expired", "delivery_expiry"),
    ],
)
def test_a_backlog_that_came_as_a_burst_is_walked_and_not_sorted(
    installation: Installation, name: str, index: str
) -> None:
    """Statistics from when the tables were empty don't lead to a sort of everything for a few."""
    parameters = next(of for known, of, _ in QUERIES if known == name)
    for table in ("delivery", "email_notification_log"):
        installation.query(f"ALTER TABLE pipeline.{table} SET (autovacuum_enabled = off)")
    installation.query("ANALYZE pipeline.delivery, pipeline.email_notification_log")
    installation.query(OPEN, (5_000,))
    installation.query(PENDING, (10_000,))
    indexes, scanned, kinds = plan(installation, name, parameters, walks=True)
    assert index in indexes
    assert not scanned & LARGE
    if name == "stack_claim":
        # Each stack's rows are looked up, not each row that waits compared with each stack.
        assert "Tid Scan" in kinds
    else:
        assert "Sort" not in kinds


def test_what_every_mail_takes_is_looked_up_by_key_although_nothing_was_there(
    installation: Installation,
) -> None:
    """A sender's session keeps its plans, and makes them when its tables may be empty. An index of
    what is in hand would look as good as the key, and is full of entries that are dead."""
    installation.query("ANALYZE pipeline.delivery, pipeline.delivery_attempt")
    installation.query(SESSION_LIMITS)
    for name in ("delivery_begin", "delivery_mark", "delivery_settle"):
        parameters = next(of for known, of, _ in QUERIES if known == name)
        indexes, scanned, _ = plan(installation, name, parameters, walks=False)
        assert {"delivery_pkey", "delivery_attempt_pkey"} <= indexes
        assert "delivery_in_hand" not in indexes
        assert not scanned & LARGE


def test_the_delivery_that_a_stack_joins_is_looked_up_although_none_waited_a_moment_ago(
    installation: Installation,
) -> None:
    """Where nothing waits every index of what waits looks equally good: one alone may be taken."""
    installation.query(FINISHED, (2_000,))
    installation.query(PENDING, (2_000,))
    installation.query("VACUUM (ANALYZE) pipeline.delivery, pipeline.email_notification_log")
    for name in ("stack_claim", "delivery_claim", "delivery_waiting"):
        parameters = next(of for known, of, _ in QUERIES if known == name)
        indexes, _, _ = plan(installation, name, parameters, walks=True)
        assert "delivery_expiry" not in indexes
        assert "delivery_joinable" in indexes or name != "stack_claim"
