"""Recovery: whatever got stuck goes on. Run by every scheduler; any number of them do no harm.

Each state that is not final is owned by exactly one of these, or by the senders' claim:

    queued        claim (delivery_claim.sql), or when too old `expire`
    sending       `give_up_silent`          once the lease is over
    transmitting  `declare_uncertain`       once the lease is over
    deferred      `requeue_deferred`        when due, or when too old `expire`
    uncertain     `decide_uncertain`        by policy
    held          an operator

Nothing here trusts that a message reached anybody: what is owed is read from the tables, and rung
for again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta

import psycopg2

from . import delivery
from .database import Connection, query, transaction
from .doorbells import Doorbells
from .relay_state import RelayState
from .settings import Settings
from .settlement import GROWTH, retry_delay

logger = logging.getLogger(__name__)

#: Rows that one statement of recovery touches at the most.
BATCH = 500

#: Batches that one round of recovery or purging runs at the most.
ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Recovery:
    """One installation's recovery.

    Parameters:
      connection: In autocommit mode.
    """

    connection: Connection
    settings: Settings
    doorbells: Doorbells

    def run(self) -> None:
        """One round of all of it, each step in transactions of its own.

        Raises:
          psycopg2.Error: The first that went wrong, after the other steps.
        """
        failures: list[psycopg2.Error] = []
        for step in (
            self.give_up_silent,
            self.declare_uncertain,
            self.decide_uncertain,
            self.requeue_deferred,
            self.expire,
            self.ring,
        ):
            try:
                step()
            except psycopg2.Error as error:
                if self.connection.closed:
                    raise
                failures.append(error)
        if failures:
            raise failures[0]

    def give_up_silent(self) -> int:
        """Deliveries whose sender fell silent before the dot go back to the queue.

        Returns:
          How many.

        Raises:
          psycopg2.Error: The first that went wrong, after the other deliveries.
        """
        with transaction(self.connection, walks=True) as cursor:
            silent = delivery.silent(cursor, limit=BATCH)
        count = 0
        failures: list[psycopg2.Error] = []
        for claimed in silent:
            # The first time at once; one that keeps killing its senders must not keep them busy.
            delay = timedelta(0)
            if claimed.attempt_count > 1:
                delay = retry_delay(claimed.attempt_count - 1, self.settings)
            try:
                is_taken = delivery.give_up(
                    self.connection,
                    claimed,
                    max_attempts=self.settings.max_attempts,
                    delay=delay,
                )
            except psycopg2.Error as error:
                if self.connection.closed:
                    raise
                failures.append(error)
                continue
            if is_taken:
                count += 1
                logger.warning(
                    "Delivery %s: its sender fell silent before the final dot (attempt %d).",
                    claimed.id,
                    claimed.attempt_count,
                )
        if failures:
            raise failures[0]
        return count

    def declare_uncertain(self) -> int:
        """Deliveries whose sender fell silent after the marker become `uncertain`.

        Returns:
          How many.
        """
        with transaction(self.connection, walks=True) as cursor:
            cursor.execute(query("recover_transmitting"), {"limit": BATCH})
            lost = cursor.fetchall()
        for (id_,) in lost:
            logger.warning("Delivery %s: its sender fell silent after the final dot.", id_)
        return len(lost)

    def decide_uncertain(self) -> int:
        """The policy decides about deliveries that are `uncertain`.

        Returns:
          How many.
        """
        with transaction(self.connection, walks=True) as cursor:
            cursor.execute(
                query("recover_uncertain"),
                {
                    "limit": BATCH,
                    "policy": self.settings.on_uncertain,
                    "max_attempts": self.settings.max_attempts,
                    "retry_base": self.settings.retry_base,
                    "retry_cap": self.settings.retry_cap,
                    "growth": GROWTH,
                },
            )
            decided = cursor.fetchall()
        for id_, state, message_id in decided:
            logger.warning("Delivery %s may have been received: %s (%s).", id_, state, message_id)
        return len(decided)

    def requeue_deferred(self) -> int:
        """Deferred deliveries that are due go back to the queue.

        Returns:
          How many.
        """
        return self._in_batches("recover_deferred", {"limit": BATCH})

    def expire(self) -> int:
        """Deliveries that have waited for longer than the age limit fail.

        Returns:
          How many.
        """
        return self._in_batches("recover_expired", {"limit": BATCH})

    def ring(self) -> int:
        """Ring for what waits and nobody is under way to.

        Returns:
          How many messages were written.
        """
        relay = RelayState.of(self.settings)
        with transaction(self.connection, walks=True) as cursor:
            self.doorbells.prune(cursor)
            self.doorbells.repeat(cursor)
        with transaction(self.connection, walks=True) as cursor:
            count = 0
            useful = relay.useful_senders(cursor)
            if useful:
                count += self.doorbells.ring_senders(cursor, useful)
            cursor.execute(query("stacking_owed"))
            row = cursor.fetchone()
            if row is not None and row[0]:
                count += self.doorbells.ring_stacker(cursor)
        return count

    def purge(self) -> int:
        """Delete what is finished and older than it is kept, and our finished Dramatiq messages.

        Returns:
          How many deliveries.
        """
        count = self._in_batches("purge_deliveries", {"limit": BATCH, "keep": self.settings.keep})
        for _ in range(ROUNDS):
            with transaction(self.connection, walks=True) as cursor:
                if self.doorbells.purge(cursor, limit=BATCH) < BATCH:
                    break
        with transaction(self.connection, walks=True) as cursor:
            cursor.execute(query("purge_ticks"))
            cursor.execute(query("purge_processes"))
        return count

    def _in_batches(self, name: str, parameters: dict[str, object]) -> int:
        count = 0
        for _ in range(ROUNDS):
            with transaction(self.connection, walks=True) as cursor:
                cursor.execute(query(name), parameters)
                count += cursor.rowcount
                if cursor.rowcount < BATCH:
                    break
        return count
