"""Guards of stacking, of claims and of leases."""

from __future__ import annotations

from tests.faults.guards.guard import Guard
from tests.faults.guards.places import HOLD, POISON, RECOVERY, SQL, STACKING

DISPATCH = (
    Guard(
        "two passes never have the same stack: its advisory lock",
        "P3",
        f"{SQL}/stack_claim.sql",
        "WHERE pg_try_advisory_xact_lock( pipeline.stack_key("
        "receiver_id, entity_name, entity_identifier))",
        "",
        f"{STACKING}::test_a_stack_that_another_pass_has_is_left_to_it",
    ),
    Guard(
        "a row is claimed once: it is looked at again when it is locked",
        "P3",
        f"{SQL}/stack_claim.sql",
        "AND notification.processed_at IS NULL",
        "",
        f"{HOLD}::test_a_pass_leaves_rows_that_were_claimed_while_it_waited",
    ),
    Guard(
        "a stack has one delivery that can be joined: a unique index",
        "P3",
        "schema.sql",
        "CREATE UNIQUE INDEX IF NOT EXISTS delivery_joinable",
        "CREATE INDEX IF NOT EXISTS delivery_joinable",
        f"{HOLD}::test_a_stack_has_one_delivery_that_can_be_joined",
    ),
    Guard(
        "new rows join what waits only while nobody can have received it",
        "P4",
        f"{SQL}/stack_claim.sql",
        "AND delivery.uncertain_count = 0",
        "",
        f"{STACKING}::test_rows_do_not_join_a_delivery_that_may_have_been_received",
    ),
    Guard(
        "claim, deliveries and doorbells commit together",
        "P2",
        "pipeline/stacking.py",
        "message_count = doorbells.ring_senders(cursor, wanted)",
        "cursor.execute('COMMIT; BEGIN'); message_count = doorbells.ring_senders(cursor, wanted)",
        f"{STACKING}::test_D10_a_stacker_that_dies_before_its_commit_leaves_nothing",
    ),
    Guard(
        "a row says that it is claimed and by which delivery, or neither: a check",
        "P1",
        "schema.sql",
        "CHECK ((processed_at IS NULL) = (delivery_id IS NULL))",
        "CHECK (true)",
        f"{HOLD}::test_a_row_is_claimed_by_a_delivery_or_not_at_all",
    ),
    Guard(
        "one tick a slot, however many schedulers: a primary key",
        "P3",
        "schema.sql",
        "PRIMARY KEY (schedule, slot)",
        "CHECK (slot IS NOT NULL)",
        f"{RECOVERY}::test_ticks_are_one_for_all_schedulers",
    ),
    Guard(
        "whoever comes first in key order is claimed too",
        "P1",
        "pipeline/stacking.py",
        '"from_start": after is None',
        '"from_start": False',
        f"{POISON}::test_P1_a_row_whose_ids_are_all_empty_is_claimed_too",
    ),
)

CLAIMS = (
    Guard(
        "two claims share nothing: the rows are locked",
        "P4",
        f"{SQL}/delivery_claim.sql",
        "FOR UPDATE SKIP LOCKED",
        "",
        f"{HOLD}::test_two_claims_at_once_share_nothing_and_wait_for_nothing",
    ),
    Guard(
        "a claim waits for no other: SKIP LOCKED",
        "P6",
        f"{SQL}/delivery_claim.sql",
        "FOR UPDATE SKIP LOCKED",
        "FOR UPDATE",
        f"{HOLD}::test_two_claims_at_once_share_nothing_and_wait_for_nothing",
    ),
    Guard(
        "only what is queued is claimed: the state",
        "P4",
        f"{SQL}/delivery_claim.sql",
        "WHERE state = 'queued' AND",
        "WHERE",
        f"{RECOVERY}::test_every_state_that_is_not_final_is_owned_by_exactly_one_query",
    ),
    Guard(
        "each claim has a token of its own",
        "P4",
        f"{SQL}/delivery_claim.sql",
        "attempt_token = gen_random_uuid(),",
        "attempt_token = coalesce(attempt_token, gen_random_uuid()),",
        f"{RECOVERY}::test_D08_a_sender_that_was_taken_over_can_not_pass_the_marker",
    ),
    Guard(
        "what was taken over can't be begun: the token",
        "P4",
        f"{SQL}/delivery_begin.sql",
        "AND attempt_token = %(token)s AND state = 'sending'",
        "AND state = 'sending'",
        f"{HOLD}::test_a_sender_that_was_taken_over_can_not_begin",
    ),
    Guard(
        "an attempt counts from its beginning, so that a killer runs out of them",
        "P6",
        f"{SQL}/delivery_begin.sql",
        "SET attempt_count = attempt_count + 1,",
        "SET attempt_count = attempt_count,",
        f"{RECOVERY}::test_D07_a_delivery_that_kills_its_senders_fails_at_the_cap",
    ),
    Guard(
        "a lease is extended by its holder only: the token",
        "P4",
        f"{SQL}/delivery_extend.sql",
        "AND delivery.attempt_token = held.token",
        "",
        f"{HOLD}::test_a_sender_that_was_taken_over_does_not_extend_anothers_lease",
    ),
    Guard(
        "what was taken over is not put back: the token",
        "P4",
        f"{SQL}/delivery_release.sql",
        "WHERE id = %(id)s AND attempt_token = %(token)s AND state = 'sending'",
        "WHERE id = %(id)s AND state = 'sending'",
        f"{HOLD}::test_a_sender_that_was_taken_over_puts_nothing_back",
    ),
    Guard(
        "what has begun is not put back",
        "P1",
        f"{SQL}/delivery_release.sql",
        "AND NOT EXISTS ( SELECT FROM pipeline.delivery_attempt "
        "WHERE delivery_id = %(id)s AND attempt_token = %(token)s )",
        "",
        f"{HOLD}::test_what_has_begun_is_not_put_back",
    ),
    Guard(
        "what was taken over is not ended: the token",
        "P1",
        f"{SQL}/delivery_close.sql",
        "WHERE id = %(id)s AND attempt_token = %(token)s AND state = 'sending'",
        "WHERE id = %(id)s AND state = 'sending'",
        f"{HOLD}::test_a_sender_that_was_taken_over_ends_nothing",
    ),
    Guard(
        "what is too old is not claimed",
        "P6",
        f"{SQL}/delivery_claim.sql",
        "AND expires_at > now()",
        "",
        f"{RECOVERY}::test_too_old_is_not_claimed",
    ),
)
