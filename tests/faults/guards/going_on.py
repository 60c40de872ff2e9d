"""Guards of what goes on by itself: joining, recovery, doorbells."""

from __future__ import annotations

from tests.faults.guards.guard import Guard
from tests.faults.guards.places import FROZEN, HOLD, POISON, RECOVERY, SENDING, SQL, STACKING

JOINING = (
    Guard(
        "nothing is moved into a mail that another is sending: the token",
        "P1",
        f"{SQL}/delivery_absorb.sql",
        "AND attempt_token IS NOT DISTINCT FROM %(token)s",
        "",
        f"{HOLD}::test_new_rows_are_not_moved_into_a_mail_that_another_is_sending",
    ),
    Guard(
        "nothing is moved into a mail whose sender spoke again: the lease",
        "P1",
        f"{SQL}/delivery_absorb.sql",
        "AND (NOT %(silent_only)s OR coalesce(lease_expires_at, '-infinity') <= now())",
        "",
        f"{HOLD}::test_a_sender_that_spoke_again_is_not_given_up",
    ),
    Guard(
        "what may have been received takes nothing in",
        "P4",
        f"{SQL}/delivery_absorb.sql",
        "AND uncertain_count = 0 FOR UPDATE",
        "FOR UPDATE",
        f"{HOLD}::test_what_may_have_been_received_takes_nothing_in",
    ),
    Guard(
        "what goes back to waiting takes in what its stack was given meanwhile",
        "P3",
        "pipeline/delivery.py",
        "if settlement.waits: _make_room(cursor, claimed)",
        "",
        f"{RECOVERY}::test_P3_a_stack_that_got_a_second_delivery_meanwhile_is_one_again",
    ),
)

RECOVERING = (
    Guard(
        "a sender that spoke again is not given up: its lease is looked at again",
        "P4",
        f"{SQL}/delivery_give_up.sql",
        "AND coalesce(lease_expires_at, '-infinity') <= now()",
        "",
        f"{HOLD}::test_a_sender_that_spoke_again_is_not_given_up",
    ),
    Guard(
        "nobody is declared lost before the lease is over",
        "P7",
        f"{SQL}/recover_transmitting.sql",
        "AND coalesce(lease_expires_at, '-infinity') <= now()",
        "",
        f"{RECOVERY}::test_every_state_that_is_not_final_is_owned_by_exactly_one_query",
    ),
    Guard(
        "what was sent to the dot is uncertain, not queued",
        "P4",
        f"{SQL}/recover_transmitting.sql",
        "SET state = 'uncertain',",
        "SET state = 'queued',",
        f"{RECOVERY}::test_a_sender_that_dies_after_the_marker_leaves_it_uncertain",
    ),
    Guard(
        "the policy decides about what is uncertain",
        "P4",
        f"{SQL}/recover_uncertain.sql",
        "WHEN %(policy)s = 'hold' THEN 'held'",
        "WHEN false THEN 'held'",
        f"{RECOVERY}::test_a_sender_that_dies_after_the_marker_leaves_it_uncertain",
    ),
    Guard(
        "one delivery that can't be recovered keeps no other from it",
        "P6",
        "pipeline/recovery.py",
        "failures.append(error) continue",
        "raise",
        f"{POISON}::test_P6_one_delivery_that_can_not_be_recovered_keeps_no_other_from_it",
    ),
)

CALLS = (
    Guard(
        "of senders that the relay is too busy for, one does not rest",
        "P6",
        f"{SQL}/sender_leave.sql",
        "ELSE now() END",
        "ELSE now() + %(rest)s END",
        f"{SENDING}::test_S01_a_relay_that_is_busy_for_everybody_is_tried_again_soon",
    ),
    Guard(
        "of senders that leave at once each sees the one before: the lock",
        "P6",
        "pipeline/sending.py",
        'if turn.rest: cursor.execute(query("doorbells_lock"))',
        "",
        f"{SENDING}::test_S01_a_sender_that_leaves_sees_the_one_that_left_just_before",
    ),
    Guard(
        "one rings at a time: the lock on ringing",
        "P5",
        f"{SQL}/doorbells_lock.sql",
        "pg_advisory_xact_lock(hashtextextended('pipeline.doorbell', 0))",
        "1",
        f"{HOLD}::test_two_that_ring_at_once_ring_one_after_the_other",
    ),
    Guard(
        "doorbells are capped",
        "P5",
        "pipeline/doorbells.py",
        "min(wanted, self.senders)",
        "wanted",
        f"{STACKING}::test_doorbells_are_capped_whatever_the_backlog",
    ),
    Guard(
        "a sender's place is another's when its lease is over, and not before",
        "P6",
        f"{SQL}/sender_enter.sql",
        "AND lease_expires_at <= now()",
        "",
        f"{SENDING}::test_there_are_never_more_connections_than_senders",
    ),
    Guard(
        "a sender that lost its place stops",
        "P6",
        "pipeline/sending.py",
        "or not self._keeper.has_place",
        "",
        f"{HOLD}::test_a_sender_that_lost_its_place_sends_no_more",
    ),
    Guard(
        "a doorbell that died with its worker is given up: its lock is gone",
        "P5",
        f"{SQL}/doorbells_prune.sql",
        "WHERE doorbell.over_at IS NULL AND message.state = 'consumed'",
        "WHERE false",
        f"{RECOVERY}::test_P5_a_doorbell_that_died_with_its_worker_is_rung_again",
    ),
    Guard(
        "a doorbell that a worker holds is not given up: its lock is there",
        "P5",
        f"{SQL}/doorbells_prune.sql",
        "WHERE locktype = 'advisory'",
        "WHERE false",
        f"{RECOVERY}::test_a_doorbell_that_a_busy_worker_has_fetched_is_left_alone",
    ),
    Guard(
        "a worker that is frozen is not counted on for ever",
        "P5",
        f"{SQL}/doorbells_live.sql",
        "AND greatest(doorbell.rung_at, doorbell.answered_at) > now() - %(silence)s",
        "",
        f"{FROZEN}::test_doorbells_that_a_frozen_worker_has_fetched_are_rung_again",
    ),
    Guard(
        "a transaction that stands idle is ended by the database",
        "P6",
        "pipeline/database.py",
        "SET LOCAL idle_in_transaction_session_timeout = '{IDLE_TIMEOUT * 1000:.0f}ms'",
        "SET LOCAL idle_in_transaction_session_timeout = 0",
        f"{FROZEN}::test_a_stacker_frozen_in_its_chunk_gives_the_stacks_back",
    ),
    Guard(
        "each transaction says its isolation",
        "P3",
        "pipeline/database.py",
        "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;",
        "BEGIN;",
        f"{POISON}::test_a_database_with_another_default_isolation_is_no_trouble",
    ),
    Guard(
        "mail behind a stalled sender calls another",
        "P6",
        "pipeline/relay_state.py",
        "return useful if on_trial else useful + int(busy)",
        "return useful",
        f"{FROZEN}::test_mail_that_waits_while_a_sender_is_stalled_calls_another",
    ),
)
