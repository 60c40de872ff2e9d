"""Doorbells: the few Dramatiq messages that call a worker to stack or to send.

They say nothing else: what there is to do stands in our tables. So one that is lost, repeated, late
or out of order loses nothing and repeats nothing, and the queue stays short whatever the backlog.
Doorbells are written in the caller's transaction, under a lock that keeps to the cap.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from dramatiq import Broker, Message
from psycopg2 import sql

from .database import Cursor, only_row, query
from .outbox import enqueue, queue_table

#: The queue that our messages are in.
QUEUE = "pipeline"

#: The actors, by the names that their messages carry.
STACK = "pipeline.stack"
SEND = "pipeline.send"

#: After this time without an answer a doorbell is notified again.
PATIENCE = timedelta(seconds=5)

#: A doorbell that a worker has fetched is counted on for this long without a sign of life.
SILENCE = timedelta(minutes=1)


class Doorbells:
    """Rings for the actors of one installation.

    Parameters:
      broker: Whose middleware sees the messages, and whose table they go to.
      senders: How many senders there may be at once.
    """

    def __init__(self, broker: Broker, *, senders: int) -> None:
        self.broker = broker
        self.senders = senders
        self.table = queue_table(broker)

    def ring_senders(self, cursor: Cursor, wanted: int) -> int:
        """Call for senders until `wanted` are under way, the cap at the most.

        Returns:
          How many messages were written.
        """
        return self._ring(cursor, SEND, min(wanted, self.senders))

    def ring_stacker(self, cursor: Cursor) -> int:
        """Call for a stacking pass, unless one is under way.

        Returns:
          How many messages were written.
        """
        return self._ring(cursor, STACK, 1)

    def _ring(self, cursor: Cursor, actor: str, wanted: int) -> int:
        # Looked at twice: without the lock to see whether it is worth waiting for it, and then with
        # it, in a statement of its own that sees what the last holder has committed.
        if self._live_count(cursor, actor) >= wanted:
            return 0
        cursor.execute(query("doorbells_lock"))
        missing = wanted - self._live_count(cursor, actor)
        if missing <= 0:
            return 0
        messages: list[Message[Any]] = [
            Message(queue_name=QUEUE, actor_name=actor, args=(), kwargs={}, options={})
            for _ in range(missing)
        ]
        enqueue(cursor, *messages, broker=self.broker)
        cursor.execute(
            query("doorbells_record"),
            {"actor": actor, "message_ids": [message.message_id for message in messages]},
        )
        return missing

    def _live_count(self, cursor: Cursor, actor: str) -> int:
        cursor.execute(
            self._with_queue("doorbells_live"),
            {"actor": actor, "counts_senders": actor == SEND, "silence": SILENCE},
        )
        row = only_row(cursor)
        return int(row[0])

    def answer(self, cursor: Cursor, message_id: str | None) -> None:
        """A worker begins to answer this message, or shows that it is still at it."""
        cursor.execute(query("doorbell_answer"), {"message_id": message_id})

    def over(self, cursor: Cursor, message_id: str | None) -> None:
        """The answer to this message is over."""
        cursor.execute(query("doorbell_over"), {"message_id": message_id})

    def prune(self, cursor: Cursor) -> int:
        """Forget the doorbells that can't be answered any more.

        Returns:
          How many there were.
        """
        cursor.execute(self._with_queue("doorbells_prune"))
        return cursor.rowcount

    def repeat(self, cursor: Cursor) -> int:
        """Notify again of doorbells that nobody has answered for a while.

        Returns:
          How many there were.
        """
        cursor.execute(self._with_queue("doorbells_repeat"), {"patience": PATIENCE})
        return cursor.rowcount

    def purge(self, cursor: Cursor, *, limit: int) -> int:
        """Delete doorbells that have been over for an hour, with their messages.

        Returns:
          How many.
        """
        cursor.execute(self._with_queue("doorbells_purge"), {"limit": limit})
        return cursor.rowcount

    def _with_queue(self, name: str) -> sql.Composed:
        return sql.SQL(query(name)).format(queue=sql.Identifier(*self.table))
