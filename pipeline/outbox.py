"""Sending messages in the caller's own transaction.

`enqueue(cursor, my_actor.message(17))` writes Dramatiq messages into dramatiq-pg's table with the
cursor it is given: they are sent if that transaction commits, and only then. The cursor may come
from any synchronous DB-API driver for Postgres with ``%s`` parameters: psycopg2, psycopg 3 (either
way of binding), Django, SQLAlchemy's raw cursors.

What can be known to fail is refused before the cursor is touched: Postgres would find it too, but
only by aborting everything that the caller had done in the transaction.
"""

from __future__ import annotations

import inspect
import json
import math
import re
import uuid
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import resources
from typing import Any, NamedTuple, Protocol

import dramatiq.broker
from dramatiq.broker import Broker, MessageProxy
from dramatiq.common import current_millis, dq_name
from dramatiq.message import Message
from dramatiq_pg import broker as dramatiq_pg_broker
from dramatiq_pg.utils import quote_ident

__all__ = ["QueueTable", "UnstorableMessageError", "enqueue", "queue_table", "write"]

#: Bytes of a queue's name, ``.DQ`` included, that fit into ``dramatiq.<queue>.enqueue``: the name
#: of a NOTIFY channel ends at 63.
QUEUE_NAME_LIMIT = 46

#: What Python writes as JSON and jsonb refuses: NUL, half a surrogate pair, NaN and infinities.
#: Cheap to look for; a hit is looked at more closely, since it may be part of an innocent text.
_SUSPECT = re.compile(r"\\u0000|\\ud[89a-f]|NaN|Infinity", re.IGNORECASE)
_UNSTORABLE_CHARACTER = re.compile("[\x00\ud800-\udfff]")

#: Tells consumers of a message by its id alone, in the form that stock ones understand too.
_ANNOUNCED = """count(
        pg_notify(
            'dramatiq.' || queue_name || '.enqueue',
            jsonb_build_object('message_id', message_id)::text
        )
    )"""


class Cursor(Protocol):
    """As much of a DB-API cursor as is used here."""

    def execute(self, query: Any, params: Any = ..., /) -> Any: ...


class UnstorableMessageError(ValueError):
    """A message that Postgres can't store. It says which actor's, and what is wrong where."""


class QueueTable(NamedTuple):
    """Where a broker keeps its messages."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{quote_ident(self.schema)}.{quote_ident(self.name)}"


def enqueue(
    cursor: Cursor,
    *messages: Message[Any],
    delay: float | None = None,
    broker: Broker | None = None,
) -> None:
    """Send messages if, and only if, the cursor's transaction commits.

    All of them are written by one statement, to the table in which the broker's own `enqueue` would
    put them. The broker's middleware sees each message before and after the statement, as with
    `enqueue`: `after_enqueue` says that a message was written, not that it was committed. A message
    that is given twice is sent once.

    Parameters:
      cursor: Any DB-API cursor on the broker's database.
      messages: What `actor.message()` or `actor.message_with_options()` return, of any actors.
      delay: Milliseconds to wait before they run, by the database's clock; None or 0 for none.
      broker: Whose messages these are; the global broker unless given.

    Raises:
      UnstorableMessageError: (a ValueError) For NUL, lone surrogates, NaN or infinities in a
        message, a queue's name that is too long or an id that is no UUID. The transaction has not
        been touched.
      TypeError: For an asynchronous cursor, or a broker that keeps its messages elsewhere.
      RuntimeError: When no broker is given and there is no global one.
    """
    if inspect.iscoroutinefunction(cursor.execute):
        raise TypeError(f"enqueue needs a synchronous cursor, got {type(cursor).__name__}")
    if broker is None:
        # Not get_broker(): where there is none, that makes one for RabbitMQ or Redis.
        broker = dramatiq.broker.global_broker
        if broker is None:
            raise RuntimeError("no broker: pass broker=, or call dramatiq.set_broker() first")
    table = queue_table(broker)

    rows = {}
    delayed = delay or None
    written = []
    for message in messages:
        if delayed:
            message = delay_message(message, delayed)
        broker.emit_before("enqueue", message, delay)
        rows[str(message.message_id)] = encode_row(message, delayed)
        written.append(message)
    if rows:
        write(cursor, table, rows.values(), announce=getattr(broker, "announces", True))
    for message in written:
        broker.emit_after("enqueue", message, delay)


def write(cursor: Cursor, table: QueueTable, rows: Iterable[str], *, announce: bool = True) -> None:
    """Insert rows of `encode_row`, each id at most once: one statement, no middleware.

    The cursor then has one row: the transaction's id, as text, and the number of messages.

    Parameters:
      cursor: Any DB-API cursor.
      table: Where to write.
      rows: What to write.
      announce: Whether to notify consumers when it commits.
    """
    cursor.execute(_enqueue_sql(table, announce), (f"[{','.join(rows)}]",))


def queue_table(broker: Broker) -> QueueTable:
    """The table in which a broker's own `enqueue` would write.

    A broker that knows its table says so in an attribute `queue_table`. dramatiq-pg's doesn't: its
    SQL, with schema and prefix filled in, is a global of its module, which every new broker with a
    schema overwrites. That text is what its `enqueue` runs, so the name is read from there.

    Raises:
      TypeError: When the broker isn't one of dramatiq-pg's.
      RuntimeError: When dramatiq-pg's SQL isn't what it used to be.
    """
    known = getattr(broker, "queue_table", None)
    if isinstance(known, QueueTable):
        return known
    if not isinstance(broker, dramatiq_pg_broker.PostgresBroker):
        raise TypeError(f"a dramatiq-pg broker is needed, got {type(broker).__name__}")
    queries = dramatiq_pg_broker.QUERIES
    before, _, after = queries.queries["ENQUEUE"].partition("{schema}.{tablename}")
    found = re.fullmatch(
        re.escape(before) + r'"((?:[^"]|"")+)"\."((?:[^"]|"")+)"' + re.escape(after),
        queries.ENQUEUE,
    )
    if found is None:
        raise RuntimeError("can't find the queue's table in dramatiq-pg's SQL: unknown version?")
    schema, name = (part.replace('""', '"') for part in found.groups())
    return QueueTable(schema, name)


def delay_message(message: Message[Any], delay: float) -> Message[Any]:
    """The message as it waits in its delay queue.

    Its `eta` is by this machine's clock and for middleware to see; the statement that writes it
    sets it by the database's.
    """
    eta = int(current_millis() + delay)
    return message.copy(queue_name=dq_name(message.queue_name), options={"eta": eta})


def encode_row(message: Message[Any] | MessageProxy, delay: float | None = None) -> str:
    """One element of the array that `write` sends.

    Raises:
      UnstorableMessageError: When Postgres would refuse it.
    """
    if len(message.queue_name.encode("utf-8", "surrogatepass")) > QUEUE_NAME_LIMIT:
        raise UnstorableMessageError(
            f"actor {message.actor_name!r}: the name of queue {message.queue_name!r} is longer "
            f"than {QUEUE_NAME_LIMIT} bytes, the most that NOTIFY can carry"
        )
    try:
        uuid.UUID(str(message.message_id))
    except ValueError:
        raise UnstorableMessageError(
            f"actor {message.actor_name!r}: message_id {message.message_id!r} is not a UUID"
        ) from None
    return f'{{"message":{encode_message(message)},"delay":{json.dumps(delay)}}}'


def encode_message(message: Message[Any] | MessageProxy, *, clean: bool = False) -> str:
    """A message as JSON in plain ASCII, which every client encoding can carry.

    Parameters:
      message: The message.
      clean: Replace what Postgres can't store instead of raising: for what must be written whatever
        an exception's text has put into it.

    Raises:
      UnstorableMessageError: When Postgres would refuse it.
    """
    encoded = message.encode()
    try:
        text = encoded.decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    if text.isascii() and text.startswith("{") and not _SUSPECT.search(text):
        return text
    # Something to look into, or an encoder of the shop's own.
    try:
        fields = json.loads(encoded)
    except ValueError as error:
        raise UnstorableMessageError(
            f"actor {message.actor_name!r}: the encoder doesn't write JSON, which the table needs: "
            f"{error}"
        ) from None
    if clean:
        fields = cleaned(fields)
    for path, value in _leaves(fields, ""):
        trouble = _trouble(value)
        if trouble is not None:
            raise UnstorableMessageError(
                f"actor {message.actor_name!r}: {path} holds {trouble}, which Postgres can't store"
            )
    return json.dumps(fields, separators=(",", ":"))


def cleaned(value: Any) -> Any:
    """A JSON value with U+FFFD for characters, and text for numbers, that jsonb can't hold."""
    if isinstance(value, str):
        return _UNSTORABLE_CHARACTER.sub("\ufffd", value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {cleaned(key): cleaned(child) for key, child in value.items()}
    if isinstance(value, list):
        return [cleaned(child) for child in value]
    return value


def _leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    """Every scalar and key in a JSON value, each with its path: ``args[0]['name']``."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield f"a key of {path or 'the message'}", key
            yield from _leaves(child, f"{path}[{key!r}]" if path else key)
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _leaves(child, f"{path}[{index}]")
    else:
        yield path, value


def _trouble(value: object) -> str | None:
    if isinstance(value, str):
        found = _UNSTORABLE_CHARACTER.search(value)
        if found is None:
            return None
        what = "a NUL character" if found.group() == "\x00" else "half of a surrogate pair"
        return f"{what} at position {found.start()}"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return None


@cache
def _enqueue_sql(table: QueueTable, announce: bool) -> str:
    text = resources.files("pipeline").joinpath("sql", "outbox_enqueue.sql").read_text("utf-8")
    # Comments are for readers of the file, and an odd character in them is not for the driver.
    statement = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    statement = statement.replace("{announced}", _ANNOUNCED if announce else "count(*)")
    return statement.replace("{queue}", str(table).replace("%", "%%"))
