"""The one connection of a process that claims messages and holds their locks.

Every method is one statement in a transaction of its own. Whatever a statement raises, the session
must be closed then: some of its locks may have been taken, and only the end of a session is sure to
let all of them go.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import psycopg2
from psycopg2 import extensions

from pipeline.broker.queries import Queries, array

#: What every statement of the session runs with. All of them are carried by an index and are
#: planned once, maybe while the table is still empty: so no plan without one.
SETTINGS = {
    "application_name": "dramatiq-pg consumer",
    "default_transaction_isolation": "read committed",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    # Ending a statement ends the session, and the locks with it: whoever alters the table is waited
    # for. That the connection is dead, TCP finds out.
    "lock_timeout": "0",
    "statement_timeout": "0",
    "transaction_timeout": "0",
    "idle_session_timeout": "0",
    # The server must notice within seconds that this machine is gone: it holds the locks till then.
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
}

PREPARED = (
    "claim",
    "settle",
    "states",
    "unlock",
    "notify",
    "reclaim",
    "look",
    "take_up",
    "promote",
)


class SharedSessionError(psycopg2.OperationalError):
    """What this session did is not in the session that it is in now."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}: a pooler in transaction mode seems to be in between, which gives this "
            "session to others; give the broker a consume_url that goes around it"
        )


class Wanted(NamedTuple):
    """How many messages of a queue to claim, and after which (mtime and id) to start."""

    queue_name: str
    amount: int
    since: tuple[str, str]


class Candidate(NamedTuple):
    """A message that `claim` came across; without `message` if another session has its lock."""

    message_id: str
    queue_name: str
    lock_key: int
    mtime: str
    token: int | None
    message: str | None


class TakenUp(NamedTuple):
    """A message that was taken up from a dead worker."""

    message_id: str
    queue_name: str
    state: str
    message: str
    takeup_count: int


class Session:
    """The session, from its connection on.

    Parameters:
      connection: A new connection for this alone. It is never to go back to a pool.
      queries: The SQL for the broker's table.
      listen: The queues whose NOTIFY channels to listen on.
      end: Closes the connection.
    """

    def __init__(
        self,
        connection: extensions.connection,
        queries: Queries,
        listen: Iterable[str],
        end: Callable[[extensions.connection], None] = extensions.connection.close,
    ) -> None:
        self.connection = connection
        self._end = end
        connection.autocommit = True
        self._cursor = connection.cursor()
        # Those that this version of Postgres knows.
        self._cursor.execute(
            "SELECT set_config(name, %(settings)s::jsonb ->> name, false) FROM pg_settings"
            " WHERE %(settings)s::jsonb ? name",
            {"settings": json.dumps(SETTINGS)},
        )
        self._parameters: dict[str, list[str]] = {}
        for name in PREPARED:
            statement, self._parameters[name] = queries.prepared(name)
            try:
                self._cursor.execute(statement)
            except psycopg2.errors.DuplicatePreparedStatement:
                raise SharedSessionError(f"somebody else's statement {name} is here") from None
        self._listening: set[str] = set()
        for queue_name in listen:
            self.listen(queue_name)

    def listen(self, queue_name: str) -> None:
        """Be told of new messages in a queue."""
        if queue_name not in self._listening:
            channel = extensions.quote_ident(f"dramatiq.{queue_name}.enqueue", self._cursor)
            self._cursor.execute(f"LISTEN {channel}")
            self._listening.add(queue_name)

    def notified_queues(self) -> set[str]:
        """The queues of which notifications have come since the last call."""
        self.connection.poll()
        notifies = list(self.connection.notifies)
        self.connection.notifies.clear()
        return {notify.channel[len("dramatiq.") : -len(".enqueue")] for notify in notifies}

    def close(self) -> None:
        """End the session, and with it every lock it holds."""
        with suppress(psycopg2.Error):
            self._end(self.connection)

    def claim(self, wanted: Sequence[Wanted], passed_over: Iterable[str]) -> list[Candidate]:
        """Claim messages, oldest first: see `claim.sql`."""
        rows = self._run(
            "claim",
            queues=array(one.queue_name for one in wanted),
            counts=array(one.amount for one in wanted),
            since=array(one.since[0] for one in wanted),
            since_id=array(one.since[1] for one in wanted),
            passed_over=array(passed_over),
        )
        return [Candidate(*row[:6]) for row in rows]

    def settle(self, items: Iterable[str]) -> set[str]:
        """Settle messages (JSON objects), and give the ids of those that were still to settle."""
        return {row[0] for row in self._run("settle", items=f"[{','.join(items)}]")}

    def states(self, message_ids: Iterable[str]) -> dict[str, tuple[str, str]]:
        """State and queue of the messages that exist."""
        rows = self._run("states", ids=array(message_ids))
        return {row[0]: (row[1], row[2]) for row in rows}

    def unlock(self, keys: Collection[int]) -> None:
        """Let go of locks.

        Raises:
          SharedSessionError: When some weren't held.
        """
        ((lost_count,),) = self._run("unlock", keys=array(keys))
        if lost_count:
            raise SharedSessionError(f"{lost_count} of {len(keys)} locks were not held")

    def notify(self, messages: Iterable[tuple[str, str]]) -> None:
        """Tell consumers of messages that can be had: (queue, id)."""
        listed = list(messages)
        self._run("notify", queues=array(q for q, _ in listed), ids=array(i for _, i in listed))

    def reclaim(self, items: Sequence[tuple[str, str, int, int]]) -> dict[str, bool]:
        """Take back (id, queue, key, token) from an ended session: see `reclaim.sql`."""
        ids, queues, keys, tokens = zip(*items, strict=True)
        return dict(
            self._run(
                "reclaim",
                ids=array(ids),
                queues=array(queues),
                keys=array(keys),
                tokens=array(tokens),
            )
        )

    def look(self, queues: Iterable[str], in_hand: Iterable[str]) -> dict[str, int]:
        """Messages whose worker seems to be gone, each with its claim's token."""
        return dict(self._run("look", queues=array(queues), in_hand=array(in_hand)))

    def take_up(self, abandoned: dict[str, int], limit: int) -> list[TakenUp]:
        """Put messages of dead workers back, or reject them: see `take_up.sql`."""
        rows = self._run(
            "take_up", ids=array(abandoned), tokens=array(abandoned.values()), limit=limit
        )
        return [TakenUp(*row) for row in rows]

    def promote(self, queues: Iterable[str]) -> tuple[float | None, list[tuple[str, str]]]:
        """Move delayed messages that are due.

        Returns:
          Milliseconds until the next is due, None if none waits; and (queue, id) of those moved.
        """
        rows = self._run("promote", queues=array(queues))
        return rows[0][0], [(row[1], row[2]) for row in rows if row[1] is not None]

    def _run(self, name: str, **parameters: object) -> list[Any]:
        values = [parameters[parameter] for parameter in self._parameters[name]]
        places = ", ".join(["%s"] * len(values))
        try:
            self._cursor.execute(f"EXECUTE {name} ({places})", values)
        except psycopg2.errors.InvalidSqlStatementName:
            raise SharedSessionError(f"the statement {name} is gone") from None
        return self._cursor.fetchall()
