"""What tests of a process's shared turn have in common."""

from __future__ import annotations

from concurrent.futures import Future
from datetime import timedelta
from typing import Any

from tests.support.installation import Installation
from tests.support.smtp_server import ScriptedServer

#: How many senders have a place.
IN_USE = "SELECT count(*) FROM pipeline.sender WHERE token IS NOT NULL"

#: A server that is held by a test is waited for as long as that takes on a busy machine.
PATIENT: dict[str, Any] = dict.fromkeys(
    ("connect_timeout", "command_timeout", "data_timeout", "reply_timeout", "lease"),
    timedelta(minutes=1),
)


def prepare(installation: Installation, server: ScriptedServer, mails: int, **changes: Any) -> None:
    """So many mails wait for four senders."""
    installation.set(**{"smtp_url": server.url, "senders": 4, **PATIENT, **changes})
    installation.notify_many(mails)
    installation.stack()


def total(senders: list[Future[dict[str, int]]], outcome: str) -> int:
    """How many attempts of all senders ended so."""
    return sum(sender.result().get(outcome, 0) for sender in senders)


def refuse(installation: Installation, message: str, when: str, *, on: str = "delivery") -> None:
    """A trigger refuses changes of a table of the pipeline's.

    Parameters:
      when: The condition, on the row `NEW`.
    """
    installation.query(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE '{message}'; END $$"
    )
    installation.query(
        f"CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON pipeline.{on} FOR EACH ROW "
        f"WHEN ({when}) EXECUTE FUNCTION refuse()"
    )
