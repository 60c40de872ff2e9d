"""The database: is it there, is it prepared, and is it in a state to work with?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg2
from psycopg2 import sql

from pipeline.database import SCHEMA_VERSION, Connection, only_row, query, schema_version
from pipeline.outbox import QueueTable
from pipeline.reading import Subject, read_stack
from pipeline.replies import storable
from pipeline.settings import Settings
from pipeline.status import GONE_AFTER

from .settings import Finding

#: The oldest version of Postgres that has all that our SQL uses.
OLDEST_VERSION = 14

#: A transaction that is older keeps dead rows from being removed.
OLD = timedelta(minutes=5)

#: Clocks that differ by more are told, in seconds.
CLOCK_TOLERANCE = 2.0

#: Connections beside the senders' that a small installation needs: scheduler, queue, commands.
OTHER_CONNECTIONS = 12

#: Tables that are written and read, and those that may be a shop's views.
WRITTEN = (
    *("pipeline.email_notification_log", "pipeline.delivery", "pipeline.delivery_attempt"),
    *("pipeline.tick", "pipeline.doorbell", "pipeline.sender", "pipeline.relay"),
    "pipeline.process",
)
READ = ("pipeline.recipient", "pipeline.entity", "pipeline.schema_version")


def check_server(connection: Connection, settings: Settings) -> Iterator[Finding]:
    """The server itself: version, room, and whether a commit is one."""
    with connection.cursor() as cursor:
        cursor.execute(query("check_server"))
        version, number, limit, count, _, fsync, commit, is_standby = only_row(cursor)
    if number < OLDEST_VERSION * 10_000:
        yield Finding(
            "server", "fail", f"PostgreSQL {version} is too old",
            f"PostgreSQL {OLDEST_VERSION} or newer is needed.",
        )  # fmt: skip
    elif is_standby:
        yield Finding(
            "server", "fail", "this is a standby, which can't be written to",
            "Let PIPELINE_DATABASE_URL name the primary (target_session_attrs=read-write).",
        )  # fmt: skip
    else:
        yield Finding("server", "ok", f"PostgreSQL {version}")
    for name, value in (("fsync", "on" if fsync else "off"), ("synchronous_commit", commit)):
        if value == "off":
            yield Finding(
                "commits", "warn", f"{name} is off: a crash loses what was committed last",
                "A mail may then be lost, or sent twice: turn it on.",
            )  # fmt: skip
    # A sender has a connection, and one more that keeps its lease.
    needed = 2 * settings.senders + OTHER_CONNECTIONS
    text = f"{count} of {limit} connections are in use"
    if limit - count < needed:
        yield Finding(
            "connections", "warn",
            f"{text}; {settings.senders} senders and the rest may need {needed}",
            "Raise max_connections, or lower PIPELINE_SENDERS.",
        )  # fmt: skip
    else:
        yield Finding("connections", "ok", text)


def check_schema(connection: Connection) -> Finding:
    """Our own schema, and its version."""
    version = schema_version(connection)
    if version is None:
        return Finding("schema", "fail", "the schema pipeline is missing", "Run `pipeline init`.")
    if version < SCHEMA_VERSION:
        text = f"version {version}, and this program works with {SCHEMA_VERSION}"
        return Finding("schema", "fail", text, "Run `pipeline init`.")
    if version > SCHEMA_VERSION:
        text = f"version {version}, and this program only knows {SCHEMA_VERSION}"
        return Finding("schema", "fail", text, "Install a newer version of the program.")
    return Finding("schema", "ok", f"version {version}")


def check_queue(connection: Connection, settings: Settings) -> Finding:
    """dramatiq-pg's table, and whether its backlog endangers the server."""
    table = QueueTable(settings.queue_schema, f"{settings.queue_prefix}queue")
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (str(table),))
        if not only_row(cursor)[0]:
            return Finding(
                "queue", "fail", f"the table {'.'.join(table)} is missing",
                "Run `pipeline init`, or set PIPELINE_QUEUE_SCHEMA and PIPELINE_QUEUE_PREFIX.",
            )  # fmt: skip
        cursor.execute(query("check_server"))
        lock_room = only_row(cursor)[4]
        backlog_query = sql.SQL(query("check_backlog")).format(queue=sql.Identifier(*table))
        cursor.execute(backlog_query, {"limit": lock_room + 1})
        backlog = only_row(cursor)[0]
    if backlog > lock_room // 2:
        return Finding(
            "queue", "warn",
            f"{backlog:,} messages are under way in {'.'.join(table)}, and the lock table is made "
            f"for {lock_room:,}",
            "dramatiq-pg's stock consumer locks every one of them, and a full lock table stops the "
            "whole server: run more workers, raise max_locks_per_transaction, or use the broker in "
            "pipeline.broker.",
        )  # fmt: skip
    return Finding("queue", "ok", f"{'.'.join(table)}, {backlog:,} under way")


def check_privileges(connection: Connection, settings: Settings) -> Finding:
    """Whether the present user may do what is to be done."""
    queue = str(QueueTable(settings.queue_schema, f"{settings.queue_prefix}queue"))
    tables = [*WRITTEN, queue, *READ]
    with connection.cursor() as cursor:
        cursor.execute(
            query("check_privileges"),
            {"tables": tables, "read_only": [table in READ for table in tables]},
        )
        missing = cursor.fetchall()
    user = connection.info.user
    if not missing:
        return Finding("rights", "ok", f"{user} may read and write all that is needed")
    listed = "; ".join(f"{', '.join(rights)} on {table}" for table, rights in missing)
    return Finding("rights", "fail", f"{user} lacks {listed}", "Have the tables' owner grant it.")


def check_views(connection: Connection) -> Finding:
    """Whether recipients and items can be read as they are when a mail is made."""
    nobody = Subject("00000000-0000-0000-0000-000000000000", "", "", "", 0)
    try:
        with connection.cursor() as cursor:
            read_stack(cursor, nobody)
            cursor.execute(query("people"), {"ids": [""]})
    except psycopg2.Error as error:
        return Finding(
            "recipients", "fail", f"recipient or entity can't be read: {storable(str(error))}",
            "The views of these names must have the columns that schema.sql gives the tables.",
        )  # fmt: skip
    return Finding("recipients", "ok", "recipient and entity can be read")


def check_clock(connection: Connection) -> Finding:
    """This machine's clock against the database's."""
    with connection.cursor() as cursor:
        before = time.time()
        cursor.execute(query("check_clock"))
        after = time.time()
        there = only_row(cursor)[0]
    here = datetime.fromtimestamp((before + after) / 2, UTC)
    difference = (there - here).total_seconds()
    if abs(difference) <= CLOCK_TOLERANCE + (after - before) / 2:
        return Finding("clock", "ok", f"{abs(difference):.2f} s from the database's")
    return Finding(
        "clock", "warn",
        f"this machine is {abs(difference):.0f} s {'behind' if difference > 0 else 'ahead of'} "
        "the database",
        "The database's clock decides, so nothing breaks; but logs mislead, and certificates may "
        "seem invalid: set up NTP on both.",
    )  # fmt: skip


def check_vacuum(connection: Connection) -> Iterator[Finding]:
    """Old transactions, which let finished work pile up and slow everything."""
    with connection.cursor() as cursor:
        cursor.execute(query("check_old_transactions"), {"age": OLD})
        old = cursor.fetchall()
    if not old:
        yield Finding("vacuum", "ok", "no old transaction holds it back")
    for what, age, remedy in old:
        since = f", open for {str(age).partition('.')[0]}" if age is not None else ", unused"
        yield Finding(
            "vacuum", "warn", f"{storable(what)}{since}, keeps dead rows from being removed",
            f"If nobody needs it any more: {storable(remedy)}",
        )  # fmt: skip


def check_processes(connection: Connection) -> Iterator[Finding]:
    """Whether anybody is there to do the work."""
    with connection.cursor() as cursor:
        cursor.execute(query("status_processes"), {"within": GONE_AFTER})
        kinds = [kind for kind, *_ in cursor.fetchall()]
    for kind, work in (("scheduler", "stacked"), ("worker", "sent")):
        count = kinds.count(kind)
        if count:
            yield Finding(f"{kind}s", "ok", f"{count} seen lately")
        else:
            yield Finding(
                f"{kind}s", "warn", f"none seen lately: nothing is {work}",
                f"Run `pipeline {kind}`.",
            )  # fmt: skip
