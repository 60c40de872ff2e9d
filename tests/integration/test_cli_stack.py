"""`pipeline stack`."""

from __future__ import annotations

from tests.support.commands import run
from tests.support.postgres import execute


def write(url: str, receiver: str, item: str, *, urgent: bool = False) -> None:
    execute(
        url,
        "INSERT INTO pipeline.email_notification_log"
        " (receiver_id, entity_name, entity_identifier, data, urgent)"
        " VALUES (%s, 'issue', %s, '{}', %s)",
        (receiver, item, urgent),
    )


def test_stack_tells_programs_what_it_did(database_url: str) -> None:
    """`--json` counts notifications, new deliveries, joined ones and messages."""
    for receiver, item in (("1", "a"), ("1", "a"), ("1", "b"), ("2", "a")):
        write(database_url, receiver, item)

    first = run("stack", "--json", database_url=database_url)
    write(database_url, "1", "a")
    second = run("stack", "--json", database_url=database_url)

    assert first.status == 0
    assert {name: first.json[name] for name in ("claimed", "deliveries", "joined")} == {
        "claimed": 4,
        "deliveries": 3,
        "joined": 0,
    }
    assert first.json["messages"] == 1
    assert second.json["claimed"] == 1
    assert second.json["joined"] == 1
    assert second.json["deliveries"] == 0


def test_stack_tells_people_what_it_did(database_url: str) -> None:
    """Without `--json` it is one sentence; with nothing to do it says that."""
    write(database_url, "1", "a")

    assert run("stack", database_url=database_url).out == (
        "Claimed 1 notification: 1 new delivery, 0 joined that were waiting; "
        "1 Dramatiq message to call for senders.\n"
    )
    assert run("stack", database_url=database_url).out == "Nothing was waiting.\n"


def test_stack_urgent_leaves_the_rest(database_url: str) -> None:
    """`--urgent` takes only stacks that have an urgent notification, each as a whole."""
    write(database_url, "1", "a", urgent=True)
    write(database_url, "1", "a")
    write(database_url, "2", "b")

    ran = run("stack", "--urgent", "--json", database_url=database_url)

    assert ran.json["claimed"] == 2
    assert run("status", "--json", database_url=database_url).json["notifications"]["pending"] == 1
