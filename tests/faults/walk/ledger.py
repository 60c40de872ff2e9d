"""The ledger: rows against deliveries against attempts against what the SMTP server accepted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from tests.support.installation import Installation
from tests.support.smtp_server import Accepted

#: Each of these finds what must not be, and says what is wrong with it.
CHECKS = {
    "a row in no delivery": """
        SELECT n.id FROM pipeline.email_notification_log AS n
        LEFT JOIN pipeline.delivery AS d ON d.id = n.delivery_id
        WHERE d.id IS NULL OR n.processed_at IS NULL""",
    "a row in a stranger's delivery": """
        SELECT n.id, d.id FROM pipeline.email_notification_log AS n
        JOIN pipeline.delivery AS d ON d.id = n.delivery_id
        WHERE (n.receiver_id, n.entity_name, n.entity_identifier)
            <> (d.receiver_id, d.entity_name, d.entity_identifier)""",
    "a delivery that miscounts its rows": """
        SELECT d.id, d.state, d.notification_count, count(n.id) FROM pipeline.delivery AS d
        LEFT JOIN pipeline.email_notification_log AS n ON n.delivery_id = d.id
        GROUP BY d.id HAVING count(n.id) <> d.notification_count""",
    "an end without a reason": """
        SELECT id, state FROM pipeline.delivery WHERE coalesce(reason, '') = ''""",
    "a row whose sent_at is not its delivery's": """
        SELECT n.id, d.state FROM pipeline.email_notification_log AS n
        JOIN pipeline.delivery AS d ON d.id = n.delivery_id
        WHERE (n.sent_at IS NOT NULL) <> (d.state = 'sent')
            OR (d.state = 'sent') <> (d.sent_at IS NOT NULL)""",
    "an attempt without an outcome": """
        SELECT delivery_id, attempt_number FROM pipeline.delivery_attempt
        WHERE outcome IS NULL OR finished_at IS NULL""",
    "a lease on something that is over": """
        SELECT id, state FROM pipeline.delivery WHERE lease_expires_at IS NOT NULL""",
    "more attempts counted than made": """
        SELECT d.id, d.attempt_count FROM pipeline.delivery AS d
        WHERE d.attempt_count > (
            SELECT count(*) FROM pipeline.delivery_attempt WHERE delivery_id = d.id)""",
    "sent without an attempt that says so": """
        SELECT d.id FROM pipeline.delivery AS d WHERE d.state = 'sent' AND NOT EXISTS (
            SELECT FROM pipeline.delivery_attempt
            WHERE delivery_id = d.id AND outcome = 'sent')""",
    "held without an uncertain attempt": """
        SELECT d.id FROM pipeline.delivery AS d WHERE d.state = 'held' AND NOT EXISTS (
            SELECT FROM pipeline.delivery_attempt
            WHERE delivery_id = d.id AND outcome = 'uncertain')""",
    "accepted, and sent more than once by the attempts": """
        SELECT delivery_id FROM pipeline.delivery_attempt
        WHERE outcome = 'sent' GROUP BY delivery_id HAVING count(*) > 1""",
}


def check(installation: Installation, accepted: Iterable[Accepted]) -> list[str]:
    """Compare everything.

    Parameters:
      accepted: What the SMTP server took, since the database was empty.

    Returns:
      What is wrong: nothing, if the promise was kept.
    """
    wrong = [f"{name}: {rows}" for name, sql in CHECKS.items() if (rows := installation.query(sql))]
    accepted = list(accepted)
    copies = Counter(each.message_id for each in accepted)
    deliveries = installation.query(
        "SELECT d.message_id, d.state, d.receiver_id, coalesce(array_agg(a.outcome "
        "ORDER BY a.attempt_number) FILTER (WHERE a.outcome IS NOT NULL), '{}') "
        "FROM pipeline.delivery AS d "
        "LEFT JOIN pipeline.delivery_attempt AS a ON a.delivery_id = d.id GROUP BY d.id"
    )
    known = {message_id for message_id, *_ in deliveries}
    wrong += [f"mail of no delivery: {each}" for each in copies if each not in known]
    for message_id, state, receiver, outcomes in deliveries:
        wrong += _copies(message_id, state, receiver, outcomes, copies[message_id], installation)
    for each in accepted:
        wrong += _content(installation, each)
    return wrong


def _copies(
    message_id: str,
    state: str,
    receiver: str,
    outcomes: list[str],
    copies: int,
    installation: Installation,
) -> list[str]:
    told = f"{message_id} to {receiver} ({state}, {outcomes}) was accepted {copies} times"
    uncertain = outcomes.count("uncertain")
    if state == "sent" and copies == 0:
        return [f"lost: {told}"]
    if state not in ("sent", "held") and copies > uncertain:
        return [f"unknown to us: {told}"]
    if max(copies - 1, 0) > uncertain:
        return [f"a copy that nothing explains: {told}"]
    if copies > 1 and installation.settings.on_uncertain == "hold":
        return [f"sent again although the policy is to hold: {told}"]
    return []


def _content(installation: Installation, mail: Accepted) -> list[str]:
    """A mail tells of all rows of its delivery, and of no others."""
    text = mail.content.decode("utf-8", "replace")
    found: list[tuple[Any, ...]] = installation.query(
        "SELECT n.data ->> 'field', d.message_id = %s FROM pipeline.email_notification_log AS n "
        "JOIN pipeline.delivery AS d ON d.id = n.delivery_id",
        (mail.message_id,),
    )
    return [
        f"{mail.message_id} {'does not tell' if is_its_own else 'tells'} of {field!r}"
        for field, is_its_own in found
        if (field.lower() in text.lower()) != is_its_own
    ]
