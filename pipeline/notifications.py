"""`notify`: the producer's side, for those who don't write the INSERT themselves."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import dramatiq.broker
from dramatiq import Broker, Message

from .database import query
from .doorbells import QUEUE, STACK
from .outbox import Cursor, enqueue

#: What jsonb and text refuse: NUL and lone surrogates. They are replaced by U+FFFD, so that a
#: stray character in what a person typed loses nobody's notification.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


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
      cursor: Any DB-API cursor on Postgres: psycopg2, psycopg 3, Django's, SQLAlchemy's.
      receiver: Who is told: `recipient.id`.
      entity: What it is about: kind and identity, such as `("issue", "17")`.
      data: What happened; anything that JSON can say.
      triggered_by: Who did it: `recipient.id`.
      urgent: Due at once. A stacker is called in the same transaction, if there is a broker;
        without one the scheduler sees it within a second.
      broker: Where to ring; the global broker unless given.

    Returns:
      The notification's id.

    Raises:
      TypeError: When an argument has the wrong type, or `data` holds what JSON can't say.
      ValueError: When an id is empty, or `data` holds NaN or an infinity. The transaction has not
        been touched.
    """
    kind, identity = _pair(entity)
    parameters = (
        _identity("receiver", receiver),
        None if triggered_by is None else _identity("triggered_by", triggered_by),
        _identity("entity's kind", kind),
        _identity("entity's identity", identity),
        json.dumps(_storable(_mapping(data)), allow_nan=False, ensure_ascii=False),
        bool(urgent),
    )
    cursor.execute(_statement("notify"), parameters)
    row = cursor.fetchone()  # type: ignore[attr-defined]
    if urgent:
        _ring(cursor, broker)
    return str(row[0])


def _ring(cursor: Cursor, broker: Broker | None) -> None:
    broker = broker or dramatiq.broker.global_broker
    if broker is None:
        return
    message: Message[Any] = Message(
        queue_name=QUEUE, actor_name=STACK, args=(), kwargs={}, options={}
    )
    cursor.execute(_statement("doorbell_urgent"), (message.message_id, STACK, STACK))
    if cursor.fetchone() is not None:  # type: ignore[attr-defined]
        enqueue(cursor, message, broker=broker)


def _statement(name: str) -> str:
    """A statement for any driver: comments are not for the driver to find parameters in."""
    lines = query(name).splitlines()
    return "\n".join(line for line in lines if not line.startswith("--"))


def _pair(value: object) -> tuple[object, object]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TypeError(f"entity must be a pair of kind and identity, got {value!r}")
    return value[0], value[1]


def _mapping(value: object) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"data must be a mapping, got {value!r}")
    return value


def _identity(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a text, got {value!r}")
    if not value or _UNSTORABLE.search(value):
        raise ValueError(f"{what} must be a text that Postgres can store, got {value!r}")
    return value


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return _UNSTORABLE.sub(_REPLACEMENT, value)
    if isinstance(value, Mapping):
        return {_storable(key): _storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(item) for item in value]
    return value
