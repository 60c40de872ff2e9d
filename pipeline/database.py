"""Connections, transactions and the SQL files."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

import psycopg2
from dramatiq_pg import generate_init_sql
from psycopg2 import extensions, sql

Connection: TypeAlias = extensions.connection
Cursor: TypeAlias = extensions.cursor

#: The text of a statement and its parameters.
Statement: TypeAlias = tuple[str, Mapping[str, Any]]

#: The version of `schema.sql` that this code works with.
SCHEMA_VERSION = 1

#: No statement of ours may run longer than this, in seconds.
STATEMENT_TIMEOUT = 120

#: Where several senders wait for a statement it waits no longer for somebody else's lock, such as
#: a shop's on a row of its own, in milliseconds: the one that is concerned waits by itself.
LOCK_TIMEOUT = 1_000

#: The same for what none of them can go on without: the relay's state, their places.
SHARED_LOCK_TIMEOUT = 10_000

#: No transaction of ours may stand idle for longer than this, in seconds: a process that is frozen,
#: or out of reach, must not keep its locks from the others. The database ends its session.
IDLE_TIMEOUT = 10.0

#: What libpq is told, unless the URL says otherwise: notice within seconds that the server is gone.
CONNECTION_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}


@cache
def query(name: str) -> str:
    """The text of ``pipeline/sql/<name>.sql``.

    Raises:
      FileNotFoundError: When there is no such file.
    """
    return resources.files("pipeline").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")


@cache
def schema_sql() -> str:
    """The text of ``schema.sql``: from the installed package, or from the checkout's top level."""
    packaged = resources.files("pipeline").joinpath("schema.sql")
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    return (Path(__file__).resolve().parent.parent / "schema.sql").read_text(encoding="utf-8")


def connect(url: str, *, application_name: str = "pipeline") -> Connection:
    """A new connection in autocommit mode; transactions are opened by `transaction`.

    Parameters:
      url: A libpq URL or key/value string; what it says goes before our defaults. But the client's
        encoding is UTF-8 whatever URL, environment or database say: what servers reply must be
        writable.
      application_name: What `pg_stat_activity` shows.

    Raises:
      psycopg2.OperationalError: When the server can't be reached.
    """
    given = extensions.parse_dsn(url)
    connection: Connection = psycopg2.connect(
        **{
            **CONNECTION_DEFAULTS,
            "application_name": application_name,
            **given,
            "client_encoding": "UTF8",
        }
    )
    connection.autocommit = True
    return connection


def holds_any_text(connection: Connection) -> bool:
    """Whether the database can hold every letter; an old one may have an encoding with few."""
    encoding = connection.info.parameter_status("server_encoding")
    return encoding in (None, "UTF8", "SQL_ASCII")


def only_row(cursor: Cursor) -> tuple[Any, ...]:
    """The row of a statement that always has one.

    Raises:
      LookupError: When it has none all the same.
    """
    row = cursor.fetchone()
    if row is None:
        raise LookupError("the statement returned no row")
    return row


@contextmanager
def transaction(
    connection: Connection, *, walks: bool = False, lock_timeout: int = 0
) -> Iterator[Cursor]:
    """One transaction, READ COMMITTED, with bounds on each statement's time and between them.

    It commits when the block ends and rolls back when it raises. A commit that raises may have
    succeeded all the same: whatever runs in here must be safe to be asked again.

    Parameters:
      connection: In autocommit mode.
      walks: Its statements take the first few rows in the order of an index, and the planner is
        kept to that: see `walk_plan.sql`.
      lock_timeout: How long a statement waits for somebody else's lock, in milliseconds; 0 for as
        long as it may run.
    """
    with connection.cursor() as cursor:
        # The isolation is said, since a database or a role may have another default. Statements of
        # ours are short; where `stack_plan.sql` forbids plans, their costs look enormous, and a
        # server that has JIT would compile for seconds what runs for milliseconds.
        cursor.execute(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL jit = off; "
            f"SET LOCAL statement_timeout = '{STATEMENT_TIMEOUT}s'; "
            f"SET LOCAL lock_timeout = {lock_timeout}; "
            f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_TIMEOUT * 1000:.0f}ms';"
            + (query("walk_plan") if walks else "")
        )
        try:
            yield cursor
        except BaseException:
            if not connection.closed:
                try:
                    cursor.execute("ROLLBACK")
                except psycopg2.Error:
                    connection.close()
            raise
        cursor.execute("COMMIT")


#: What every transaction is given, whatever the defaults of the database or the role are.
_ISOLATION = "READ COMMITTED READ WRITE"
_LIMIT = f"statement_timeout = '{STATEMENT_TIMEOUT}s'"

#: The same for a whole session that is ours alone. Its few statements are planned once, which takes
#: longer than to run them, and look rows up by their keys: a plan that was made while its tables
#: were empty would else read them as a whole, for as long as it is kept.
SESSION_LIMITS = (
    f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {_ISOLATION}; SET {_LIMIT}; "
    f"SET lock_timeout = {LOCK_TIMEOUT}; SET plan_cache_mode = force_generic_plan; "
    "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off"
)


#: The bounds of a single transaction, in a session that is not ours.
_HEAD = (
    f"SET TRANSACTION ISOLATION LEVEL {_ISOLATION}; SET LOCAL {_LIMIT}; "
    f"SET LOCAL lock_timeout = {LOCK_TIMEOUT};\n"
)


def together(
    connection: Connection, *statements: Statement, limited: bool = False
) -> list[tuple[Any, ...]]:
    """Run several statements as one transaction, in one round trip, which commits it.

    The server takes what comes in one message without a BEGIN as one transaction: all of it or
    nothing. As with `transaction`, an error may come although it has committed.

    Parameters:
      connection: In autocommit mode.
      statements: Texts with their parameters.
      limited: The session has been given `SESSION_LIMITS`.

    Returns:
      The rows of the last one, if it gives any.
    """
    head = "" if limited else _HEAD
    with connection.cursor() as cursor:
        texts = [cursor.mogrify(text, parameters).decode() for text, parameters in statements]
        cursor.execute(head + "\n".join(texts))
        return cursor.fetchall() if cursor.description else []


def init(connection: Connection, *, queue_schema: str = "dramatiq", queue_prefix: str = "") -> None:
    """Apply `schema.sql`, and dramatiq-pg's own schema where it is missing.

    Safe to call again and from several processes at once.

    Parameters:
      connection: Any open connection outside a transaction.
      queue_schema: Schema of dramatiq-pg's table.
      queue_prefix: Prefix of its name.
    """
    before = connection.autocommit
    connection.autocommit = True
    try:
        with connection.cursor() as cursor:
            try:
                cursor.execute(schema_sql())
            except psycopg2.Error:
                if not connection.closed:
                    cursor.execute("ROLLBACK")
                raise
        with transaction(connection) as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended('pipeline.schema', 0))")
            # dramatiq-pg's DDL can't be applied twice: CREATE TYPE has no IF NOT EXISTS.
            cursor.execute(
                "SELECT to_regclass(%s) IS NULL",
                (sql.Identifier(queue_schema, f"{queue_prefix}queue").as_string(cursor),),
            )
            row = cursor.fetchone()
            if row is not None and row[0]:
                cursor.execute(generate_init_sql(queue_schema, queue_prefix))
    finally:
        connection.autocommit = before


def schema_version(connection: Connection) -> int | None:
    """The version of our schema in this database, or None when it was never applied."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass('pipeline.schema_version') IS NOT NULL")
        row = cursor.fetchone()
        if row is None or not row[0]:
            return None
        cursor.execute("SELECT max(version) FROM pipeline.schema_version")
        found = cursor.fetchone()
        return None if found is None else found[0]


def boot_clock() -> float:
    """Seconds on a clock that never jumps and goes on while the machine is suspended."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)
