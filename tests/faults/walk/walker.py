"""Goes from call to call: breaks an operation there, lets the rest go on, and checks the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.faults.walk import aftermath, ledger
from tests.faults.walk.children import Zygote
from tests.faults.walk.operations import OPERATIONS, initialise, prepare, settings_for
from tests.support.installation import Installation
from tests.support.smtp_server import ScriptedServer
from tests.support.waiting import wait_until

TABLES = "email_notification_log delivery_attempt delivery recipient tick doorbell sender relay"


@dataclass
class Walk:
    """What was walked: points visited, and what went wrong at them."""

    operation: str
    fault: str
    policy: str
    visited: int = 0
    labels: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class Walker:
    """Walks through one operation.

    Parameters:
      url: A database with the schema applied, or an empty one for `init`.
      server: Nobody else's.
      zygote: Forks the children.
    """

    def __init__(self, url: str, server: ScriptedServer, zygote: Zygote) -> None:
        self.url = url
        self.server = server
        self.zygote = zygote
        self._labels: dict[tuple[str, str], list[str]] = {}

    def walk(
        self, operation: str, fault: str, policy: str, *, stride: int = 1, offset: int = 0
    ) -> Walk:
        """Break the operation at each call, or at every `stride`-th from `offset`."""
        done = Walk(operation, fault, policy)
        done.labels = self._unbroken(done)
        points = [
            (at, when) for at, label in enumerate(done.labels, 1) for when in _moments(fault, label)
        ]
        for at, when in points[offset % stride :: stride]:
            self._step(done, fault, at, when)
            done.visited += 1
        return done

    def _unbroken(self, done: Walk) -> list[str]:
        """The calls that the operation makes when nothing happens to it."""
        key = done.operation, done.policy
        if key not in self._labels:
            report = self._step(done, None, 1, "before").get("report") or {"labels": []}
            self._labels[key] = report["labels"]
        return self._labels[key]

    def _step(self, done: Walk, fault: str | None, at: int, when: str) -> dict[str, Any]:
        operation = OPERATIONS[done.operation]
        with self._installation(done.policy) as installation:
            if done.operation == "init":
                installation.query("DROP SCHEMA IF EXISTS pipeline, dramatiq CASCADE")
            else:
                tables = ", ".join(f"pipeline.{table}" for table in TABLES.split())
                installation.query(f"TRUNCATE {tables}, dramatiq.queue")
            operation.scene.prepare(installation)
            message_id = self._ring(installation, operation.doorbell)
            self.server.clear()
            self.server.add(*operation.scene.rules())
            seen = len(self.server.accepted)
            request = {
                "operation": done.operation,
                "url": self.url,
                "smtp_url": self.server.url,
                "policy": done.policy,
                "message_id": message_id,
                "fault": fault,
                "at": at,
                "when": when,
            }
            wrong: list[str] = []
            try:
                answer = self.zygote.say(request)
                while "stopped" in answer:
                    self._meanwhile(installation, done.operation)
                    answer = self.zygote.say({})
                wrong += _judge(answer, fault, is_orderly=operation.is_orderly)
                self._until_gone(installation)
                if answer.get("report") and message_id is not None:
                    # It lived: Dramatiq acknowledges its message.
                    state = "rejected" if answer["report"]["raised"] else "done"
                    installation.query(
                        "UPDATE dramatiq.queue SET state = %s WHERE message_id = %s "
                        "AND state = 'consumed'",
                        (state, message_id),
                    )
                if done.operation == "init":
                    initialise(prepare(request))
                    installation.add_person("p1")
                    installation.notify("p1")
                aftermath.finish(installation)
                wait_until(lambda: self.server.open_connection_count == 0, message="connections")
                wrong += ledger.check(installation, self.server.accepted[seen:])
                wrong += self._quiet(installation)
            except AssertionError as error:
                wrong.append(str(error))
            label = done.labels[at - 1] if done.labels else "-"
            done.wrong += [
                f"{done.operation} ({done.policy}), {fault} {when} call {at} [{label}]: {each}"
                for each in wrong
            ]
            return answer

    @contextmanager
    def _installation(self, policy: str) -> Iterator[Installation]:
        installation = Installation(self.url)
        try:
            installation.settings = settings_for(self.url, self.server.url, policy)
            installation.set()
            yield installation
        finally:
            installation.close()

    def _ring(self, installation: Installation, actor: str | None) -> str | None:
        """The child answers one message of this actor: a worker has fetched it."""
        if actor is None:
            return None
        fetched = installation.query(
            "UPDATE dramatiq.queue SET state = 'consumed' WHERE message_id = (SELECT message_id "
            "FROM dramatiq.queue WHERE message ->> 'actor_name' = %s AND state = 'queued' LIMIT 1) "
            "RETURNING message_id::text",
            (actor,),
        )
        return str(fetched[0][0])

    def _meanwhile(self, installation: Installation, operation: str) -> None:
        """The child is frozen: the database ends its open transaction, and the others go on."""
        wait_until(
            lambda: (
                not installation.value(
                    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                    "AND pid <> pg_backend_pid() AND state = 'active'"
                )
            ),
            message="the frozen child's statements",
        )
        installation.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND state LIKE 'idle in transaction%'"
        )
        if operation != "init":
            aftermath.finish(installation)

    def _until_gone(self, installation: Installation) -> None:
        """Nothing of the child is left in the database: its sessions, and with them its locks."""
        wait_until(
            lambda: (
                installation.value(
                    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                    "AND pid <> pg_backend_pid() AND application_name NOT LIKE 'pipeline queue%'"
                )
                == 0
            ),
            message="the child's sessions",
        )

    def _quiet(self, installation: Installation) -> list[str]:
        """When all is over nobody is called any more, and nothing is left that counts as a call."""
        aftermath.pass_time(installation)
        aftermath.schedule(installation)
        aftermath.work(installation)
        aftermath.pass_time(installation)
        with installation.connection.cursor() as cursor:
            installation.doorbells.prune(cursor)
        left = {
            "doorbells": "SELECT count(*) FROM pipeline.doorbell WHERE over_at IS NULL",
            # A message whose doorbell is over lacks its acknowledgement only: whoever runs it again
            # finds nothing to do.
            "messages": "SELECT count(*) FROM dramatiq.queue AS message WHERE state IN "
            "('queued', 'consumed') AND NOT EXISTS (SELECT FROM pipeline.doorbell "
            "WHERE doorbell.message_id = message.message_id AND over_at IS NOT NULL)",
            "places": "SELECT count(*) FROM pipeline.sender WHERE lease_expires_at > now()",
            "ticks": "SELECT count(*) FROM pipeline.tick WHERE finished_at IS NULL",
        }
        return [
            f"{count} {what} left over"
            for what, sql in left.items()
            if (count := installation.value(sql))
        ]


def _moments(fault: str, label: str) -> tuple[str, ...]:
    """Where a fault can come at such a call. A statement that failed has not been executed."""
    if fault in ("kill", "freeze"):
        return ("before", "after")
    if label == "sql connect":
        return ("before",)
    if fault == "cut":
        return ("before", "after")
    if fault == "57P01":
        return ("before", "after") if label.startswith("sql") else ()
    return ("before",) if label.startswith("sql") and label != "sql ROLLBACK" else ()


def _judge(answer: dict[str, Any], fault: str | None, *, is_orderly: bool) -> list[str]:
    """The child was killed if it was to be, or ended by itself with no error but a database's."""
    report = answer.get("report")
    if fault == "kill" and answer["status"] == -9:
        return []
    if report is None:
        return [f"the child ended with {answer['status']}"]
    wrong = []
    if is_orderly and not report["reached"]:
        wrong.append("not reached")
    if report["raised"] and (fault is None or "|Error|" not in report["raised"]):
        wrong.append(f"raised {report['raised']}")
    return wrong
