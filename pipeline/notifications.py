"""`notify`: the producer's side, for those who don't write the INSERT themselves.

Whatever can be known to fail is refused before the cursor is touched: Postgres would find it too,
but only by aborting everything that the caller had done in the transaction.
"""

from __future__ import annotations

import inspect
import json
import math
import re
import uuid
from collections.abc import Mapping
from functools import cache
from reprlib import Repr
from typing import Any

import dramatiq.broker
from dramatiq import Broker, Message

from .database import query
from .doorbells import QUEUE, STACK
from .outbox import Cursor, enqueue, queue_table

#: What jsonb and text refuse: NUL and lone surrogates. In `data` they are replaced by U+FFFD, so
#: that a stray character in what a person typed loses nobody's notification.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

#: Bytes of an id in UTF-8, as in `schema.sql`: they are keys of an index.
ID_LIMIT = 800

#: Bits of a whole number: more digits are not printed by Python (sys.set_int_max_str_digits).
NUMBER_LIMIT = 10_000

_short = Repr()
_short.maxstring = _short.maxother = 100


def notify(
    cursor: Cursor,
    *,
    receiver: str,
    entity: tuple[str, str],
    data: Mapping[str, Any],
    triggered_by: str | None = None,
    urgent: bool = False,
    broker: Broker | None = None,
) -> str:
    """Write one notification in the caller's transaction.

    Parameters:
      cursor: Any synchronous DB-API cursor on Postgres: psycopg2's, psycopg 3's, Django's,
        SQLAlchemy's.
      receiver: Who is told: `recipient.id`, at most 800 bytes.
      entity: What it is about: kind and identity, such as `("issue", "17")`.
      data: What happened; anything that JSON can say. Characters that Postgres can't store (NUL,
        halves of surrogate pairs) are replaced by U+FFFD.
      triggered_by: Who did it: `recipient.id`.
      urgent: Due at once, with its whole stack. A stacker is called in the same transaction, unless
        one has been called already or there is no broker in this process: then the scheduler sees
        the row within a second after the commit.
      broker: Where to ring; unless given, the global one if it is a dramatiq-pg broker and has its
        table in this database.

    Returns:
      The notification's id.

    Raises:
      TypeError: When an argument has the wrong type, or `data` holds what JSON can't say.
      ValueError: When an id is empty or too long, or `data` holds NaN, an infinity, or too much.
        The transaction has not been touched, here and above.
    """
    _check_cursor(cursor)
    kind, identity = _pair(entity)
    if not isinstance(urgent, bool):
        raise TypeError(f"urgent must be True or False, got {_short.repr(urgent)}")
    id_ = str(uuid.uuid4())
    parameters = (
        id_,
        _identity("receiver", receiver),
        None if triggered_by is None else _identity("triggered_by", triggered_by),
        _identity("entity's kind", kind),
        _identity("entity's identity", identity),
        _encoded(data),
        urgent,
    )
    bell = _bell(broker) if urgent else None
    cursor.execute(_statement("notify"), parameters)
    if bell is not None:
        _ring(cursor, bell, was_named=broker is not None)
    return id_


def _bell(broker: Broker | None) -> Broker | None:
    """The broker to ring at, if there is one."""
    if broker is not None:
        # Raises where it keeps its messages elsewhere.
        queue_table(broker)
        return broker
    # Not get_broker(): where there is none, that makes one for RabbitMQ or Redis.
    broker = dramatiq.broker.global_broker
    if broker is not None:
        try:
            queue_table(broker)
        except TypeError:
            # The caller's own jobs go another way; the scheduler will see the row.
            return None
    return broker


def _ring(cursor: Cursor, broker: Broker, *, was_named: bool) -> None:
    message: Message[Any] = Message(
        queue_name=QUEUE, actor_name=STACK, args=(), kwargs={}, options={}
    )
    cursor.execute(
        _statement("doorbell_urgent"),
        (message.message_id, STACK, was_named, str(queue_table(broker)), STACK),
    )
    # Whether there is a row, not what it holds: a cursor may give tuples, dicts or objects.
    if cursor.fetchone() is not None:  # type: ignore[attr-defined]
        enqueue(cursor, message, broker=broker)


@cache
def _statement(name: str) -> str:
    """A statement for any driver: comments are not for the driver to find parameters in."""
    lines = query(name).splitlines()
    return "\n".join(line for line in lines if not line.startswith("--"))


def _check_cursor(cursor: object) -> None:
    execute, kind = getattr(cursor, "execute", None), type(cursor).__name__
    if execute is None or not hasattr(cursor, "fetchone"):
        raise TypeError(f"notify needs a DB-API cursor, got {kind}")
    if inspect.iscoroutinefunction(execute):
        raise TypeError(f"notify needs a synchronous cursor, got {kind}")
    if getattr(cursor, "name", None):
        # A named cursor of psycopg declares what it executes as a cursor of the server's.
        raise TypeError(f"notify needs a client-side cursor, got {kind} with a name")


def _pair(value: object) -> tuple[object, object]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TypeError(f"entity must be a pair of kind and identity, got {_short.repr(value)}")
    return value[0], value[1]


def _identity(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a text, got {_short.repr(value)}")
    if not value or _UNSTORABLE.search(value):
        raise ValueError(f"{what} must be a text that Postgres can store, got {_short.repr(value)}")
    if len(value.encode()) > ID_LIMIT:
        raise ValueError(f"{what} must have at most {ID_LIMIT} bytes, got {_short.repr(value)}")
    # A subclass, such as an enumeration's, may be something else to a driver.
    return str.__str__(value)


def _encoded(data: object) -> str:
    """`data` as JSON in plain ASCII, which every client encoding can carry."""
    if not isinstance(data, Mapping):
        raise TypeError(f"data must be a mapping, got {_short.repr(data)}")
    try:
        return json.dumps(_storable(data, "data"))
    except RecursionError:
        raise ValueError("data is nested too deeply, or holds itself") from None


def _storable(value: object, path: str) -> object:
    """The value as jsonb can hold it.

    Parameters:
      path: Where it stands, for the errors: ``data['labels'][0]``.
    """
    if isinstance(value, str):
        return _UNSTORABLE.sub(_REPLACEMENT, value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if value.bit_length() > NUMBER_LIMIT:
            raise ValueError(f"{path} is too large a number")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{path} must be a number that JSON can say, got {value}")
        return value
    if isinstance(value, Mapping):
        return {
            _key(key, path): _storable(child, f"{path}[{_short.repr(key)}]")
            for key, child in value.items()
        }
    if isinstance(value, list | tuple):
        return [_storable(child, f"{path}[{index}]") for index, child in enumerate(value)]
    raise TypeError(f"{path} must be something that JSON can say, got {_short.repr(value)}")


def _key(key: object, path: str) -> str:
    if isinstance(key, str):
        return _UNSTORABLE.sub(_REPLACEMENT, key)
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    raise TypeError(f"the keys of {path} must be texts, got {_short.repr(key)}")
