"""The ledger: rows against deliveries against what the mail server took. No I/O in the verdict."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pipeline.database import Connection, query, transaction

from .relay import Taken

#: States in which a delivery stays.
FINAL = frozenset({"sent", "failed", "held", "suppressed", "skipped", "cancelled"})

#: A mail tells of so many notifications of its stack; with more it only counts the rest.
SHOWN = 50


@dataclass(frozen=True, slots=True)
class Row:
    """A notification as the database has it."""

    token: str
    receiver_id: str
    entity_identifier: str
    delivery_id: str | None
    is_processed: bool
    sent_at: datetime | None


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivery as the database has it.

    Attributes:
      outcomes: Of its attempts, in their order; `open` for one without.
    """

    id: str
    message_id: str
    state: str
    reason: str
    receiver_id: str
    entity_identifier: str
    notification_count: int
    sent_at: datetime | None
    outcomes: Sequence[str]


@dataclass(frozen=True, slots=True)
class Ledger:
    """All that is known when a run is over.

    Attributes:
      written: Tokens that an application saw committed.
      refused: Addresses and Message-IDs that the server refused for good.
    """

    written: Collection[str]
    rows: Sequence[Row]
    deliveries: Sequence[Delivery]
    taken: Sequence[Taken]
    refused: Collection[str]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the ledger says.

    Attributes:
      lost: Notifications that nobody heard of, and for which nothing says why.
      dispatched_twice: Notifications that are told by mails of more than one delivery.
      copies: Mails received once more, with the same Message-ID.
      unexplained: Those of them that no uncertain attempt explains.
      findings: Whatever else is wrong, and all of the above, in words.
    """

    lost: int
    dispatched_twice: int
    copies: int
    unexplained: int
    states: dict[str, int]
    findings: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether the promise was kept."""
        return not self.findings


def read(
    connection: Connection, written: Path, taken: list[Taken], refused: frozenset[str]
) -> Ledger:
    """Read the database's part, and what the applications wrote down."""
    with transaction(connection) as cursor:
        cursor.execute(query("chaos_rows"))
        rows = [Row(*row) for row in cursor.fetchall()]
        cursor.execute(query("chaos_deliveries"))
        deliveries = [Delivery(*row) for row in cursor.fetchall()]
    tokens: set[str] = set()
    for path in written.iterdir():
        tokens.update(path.read_text().split())
    return Ledger(tokens, rows, deliveries, taken, refused)


def judge(ledger: Ledger, *, on_uncertain: str) -> Verdict:
    """Compare everything with everything.

    Parameters:
      on_uncertain: The policy of the run, `resend` or `hold`.
    """
    deliveries = {each.id: each for each in ledger.deliveries}
    by_message = {each.message_id: each for each in ledger.deliveries}
    told: dict[str, set[str]] = defaultdict(set)
    for mail in ledger.taken:
        for token in mail.tokens:
            told[token].add(mail.message_id)
    received = Counter(mail.message_id for mail in ledger.taken)

    lost = list(_lost(ledger, deliveries, told))
    twice = [
        f"dispatched twice: {token} is told by {sorted(ids)}"
        for token, ids in told.items()
        if len(ids) > 1
    ]
    unexplained = list(_unexplained(ledger, received, on_uncertain))
    others = [
        *(f"a mail of no delivery: {each}" for each in received if each not in by_message),
        *_strays(ledger, deliveries, by_message),
        *_ends(ledger),
    ]
    return Verdict(
        lost=len(lost),
        dispatched_twice=len(twice),
        copies=sum(count - 1 for count in received.values()),
        unexplained=len(unexplained),
        states=dict(Counter(each.state for each in ledger.deliveries).most_common()),
        findings=(*lost, *twice, *unexplained, *others),
    )


def _lost(
    ledger: Ledger, deliveries: dict[str, Delivery], told: dict[str, set[str]]
) -> Iterable[str]:
    kept = {row.token for row in ledger.rows}
    for token in sorted(set(ledger.written) - kept):
        yield f"lost: {token} was committed, and the database has no row of it"
    for row in ledger.rows:
        delivery = deliveries.get(row.delivery_id or "")
        if delivery is None or not row.is_processed:
            yield f"lost: {row.token} is in no delivery"
        elif delivery.state not in FINAL:
            yield f"lost: {row.token} waits for ever in a delivery that is {delivery.state}"
        elif delivery.state in ("suppressed", "skipped", "cancelled"):
            yield f"lost: {row.token} is in a delivery that was {delivery.state}: {delivery.reason}"
        elif (
            delivery.state == "sent"
            and delivery.notification_count <= SHOWN
            and delivery.message_id not in told.get(row.token, ())
        ):
            yield f"lost: {row.token} is marked as sent, and no mail that was taken tells of it"


def _unexplained(ledger: Ledger, received: Counter[str], on_uncertain: str) -> Iterable[str]:
    for each in ledger.deliveries:
        copies = received[each.message_id]
        uncertain = each.outcomes.count("uncertain")
        what = f"{each.message_id} ({each.state}, {each.outcomes}) was taken {copies} times"
        if copies - 1 > uncertain:
            yield f"a copy that nothing explains: {what}"
        elif copies > 1 and on_uncertain == "hold":
            yield f"sent again although the policy is to hold: {what}"
        elif each.state == "sent" and copies == 0:
            yield f"lost: marked as sent, and never taken: {what}"
        elif each.state not in ("sent", "held") and copies > uncertain:
            yield f"taken, and nobody knows: {what}"


def _strays(
    ledger: Ledger, deliveries: dict[str, Delivery], by_message: dict[str, Delivery]
) -> Iterable[str]:
    owners: dict[str, str] = {}
    for row in ledger.rows:
        delivery = deliveries.get(row.delivery_id or "")
        if delivery is None:
            continue
        owners[row.token] = delivery.message_id
        if (row.receiver_id, row.entity_identifier) != (
            delivery.receiver_id,
            delivery.entity_identifier,
        ):
            yield f"{row.token} is in the delivery of another stack: {delivery.id}"
        if row.sent_at != delivery.sent_at:
            yield (
                f"{row.token} is marked otherwise than its delivery: sent at {row.sent_at}, and "
                f"the delivery, which is {delivery.state}, at {delivery.sent_at}"
            )
    for mail in ledger.taken:
        for token in mail.tokens:
            if owners.get(token) != mail.message_id:
                yield f"{mail.message_id} tells of {token}, which is not its own"
        delivery = by_message.get(mail.message_id)
        if delivery is not None and mail.recipient.partition("@")[0] != delivery.receiver_id:
            yield f"{mail.message_id} went to {mail.recipient}, not to {delivery.receiver_id}"


def _ends(ledger: Ledger) -> Iterable[str]:
    for each in ledger.deliveries:
        if each.state in FINAL and not each.reason:
            yield f"delivery {each.id} is {each.state}, and nothing says why"
        if (each.state == "sent") != (each.sent_at is not None):
            yield f"delivery {each.id} is {each.state}, and was sent at {each.sent_at}"
        if each.state in FINAL and "open" in each.outcomes:
            yield f"delivery {each.id} is {each.state}, and an attempt of it has no outcome"
        if each.outcomes.count("sent") > 1:
            yield f"delivery {each.id} was sent more than once, by its attempts"
        address = f"{each.receiver_id}@"
        if (
            each.state == "failed"
            and each.message_id not in ledger.refused
            and not any(refused.startswith(address) for refused in ledger.refused)
        ):
            yield f"delivery {each.id} failed, and the server never refused it: {each.reason}"
