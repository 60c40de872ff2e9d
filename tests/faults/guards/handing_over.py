"""Guards around the final dot, and of what is written after it."""

from __future__ import annotations

from tests.faults.guards.guard import Guard
from tests.faults.guards.places import HOLD, POISON, RECOVERY, SENDING, SQL, STAGES

MARKER = (
    Guard(
        "the marker needs the attempt's token",
        "P4",
        f"{SQL}/delivery_mark.sql",
        "AND attempt_token = held.token AND state = (SELECT 'sending') "
        "AND lease_expires_at > now()",
        "AND state = (SELECT 'sending') AND lease_expires_at > now()",
        f"{HOLD}::test_a_sender_that_was_taken_over_does_not_mark_for_another",
    ),
    Guard(
        "the marker needs a lease that is not over",
        "P7",
        f"{SQL}/delivery_mark.sql",
        "AND lease_expires_at > now()",
        "",
        f"{RECOVERY}::test_D08_a_sender_that_was_taken_over_can_not_pass_the_marker",
    ),
    Guard(
        "the marker is on disk before the dot, whatever synchronous_commit says",
        "P4",
        f"{SQL}/delivery_mark.sql",
        "THEN set_config('synchronous_commit', 'on', true)",
        "THEN NULL",
        f"{POISON}::test_P4_the_marker_is_on_disk_before_the_dot_whatever_synchronous_commit_says",
    ),
    Guard(
        "the marker comes before the dot",
        "P4",
        "pipeline/smtp/session.py",
        "if not (yield BeforeDot()):",
        "yield from transaction.dot()\n        if not (yield BeforeDot()):",
        f"{STAGES}::test_the_caller_is_asked_after_the_content_and_before_the_dot",
    ),
    Guard(
        "no marker, no dot",
        "P4",
        "pipeline/smtp/session.py",
        "if not (yield BeforeDot()):",
        "if (yield BeforeDot()) is None:",
        f"{STAGES}::test_the_callers_no_drops_the_message_before_its_dot",
    ),
    Guard(
        "a sender that is not sure of its lease sends no dot: a clock that never jumps",
        "P4",
        "pipeline/attempting.py",
        "return claimed.id in self.ids and boot_clock() < self.until",
        "return claimed.id in self.ids",
        f"{HOLD}::test_a_dot_is_not_sent_when_the_marker_took_too_long",
    ),
    Guard(
        "a server that left, or answered, while the marker was set gets no dot",
        "P4",
        "pipeline/smtp/session.py",
        "yield from transaction.stop_if_unasked()\n        reply",
        "reply",
        f"{STAGES}::test_a_server_that_leaves_while_the_caller_is_asked_gets_no_dot",
    ),
    Guard(
        "after the dot only a definite reply is an outcome",
        "P4",
        "pipeline/replies.py",
        "if reply is None: return _UNCERTAIN",
        "if reply is None:\n        return _MESSAGE_DEFERRED",
        f"{SENDING}::test_D04_reply_lost_after_the_dot",
    ),
)

OUTCOMES = (
    Guard(
        "an outcome settles its own attempt's delivery: the token",
        "P4",
        f"{SQL}/delivery_settle.sql",
        "WHERE delivery.id = told.id AND attempt_token = told.token AND delivery.state IN",
        "WHERE delivery.id = told.id AND delivery.state IN",
        f"{RECOVERY}::test_D08_a_sender_that_was_taken_over_can_not_pass_the_marker",
    ),
    Guard(
        "an outcome that is written again counts once",
        "P4",
        f"{SQL}/delivery_settle.sql",
        "AND (own.outcome IS NULL OR own.given_up_at IS NOT NULL)",
        "",
        f"{HOLD}::test_an_uncertain_outcome_that_is_written_again_counts_once",
    ),
    Guard(
        "a late word settles what was given up: given_up_at",
        "P4",
        f"{SQL}/delivery_settle.sql",
        "AND (own.outcome IS NULL OR own.given_up_at IS NOT NULL)",
        "AND own.outcome IS NULL",
        f"{RECOVERY}::test_a_late_reply_settles_what_nobody_has_taken_on",
    ),
    Guard(
        "an acceptance that is too late stays an uncertain attempt, which explains the copy",
        "P4",
        f"{SQL}/delivery_settle.sql",
        "WHEN told.outcome = 'sent' AND delivery_attempt.outcome = 'uncertain' "
        "AND told.id <> ALL (known.settled) THEN 'uncertain'",
        "WHEN false THEN 'uncertain'",
        f"{RECOVERY}::test_a_reply_that_is_too_late_explains_the_second_copy",
    ),
    Guard(
        "the delivery is locked before its attempt, by outcomes as by recovery",
        "P6",
        f"{SQL}/delivery_settle.sql",
        "known AS MATERIALIZED ( SELECT coalesce(array_agg(id), '{}') AS settled FROM settled )",
        "known AS (SELECT array_agg(id) AS settled FROM told)",
        f"{POISON}::test_an_outcome_and_recovery_lock_in_the_same_order",
    ),
    Guard(
        "a reply that was read is written over another connection, when its own broke",
        "P4",
        "pipeline/sending.py",
        "write_outcome_patiently(self.url, self.settings, claimed, result)",
        "pass",
        f"{HOLD}::test_a_reply_that_was_read_is_written_although_the_connection_broke",
    ),
    Guard(
        "only the rows of the delivery are marked as sent",
        "P1",
        f"{SQL}/delivery_settle.sql",
        "WHERE email_notification_log.delivery_id = settled.id AND settled.state = 'sent'",
        "WHERE settled.state = 'sent'",
        f"{SENDING}::test_D02_one_failure_leaves_the_rows_of_others_alone",
    ),
    Guard(
        "the relay's trouble costs no attempt",
        "P6",
        "pipeline/settlement.py",
        "delay, refund = relay_pause, 1",
        "delay, refund = relay_pause, 0",
        "unit/test_settlement.py::test_relay_trouble_gives_the_attempt_back",
    ),
)
