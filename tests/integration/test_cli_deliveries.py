"""`pipeline deliveries`: lists, one delivery's history and mail, and the operator's verbs."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from pipeline.cli.show import told
from tests.support.commands import Ran, run
from tests.support.installation import Installation
from tests.support.smtp_server import Rule, ScriptedServer


def deliveries(installation: Installation, *arguments: str, **settings: object) -> Ran:
    return run("deliveries", *arguments, database_url=installation.url, **settings)


def make(
    installation: Installation, state: str, receiver: str = "ann", count: int = 1
) -> list[str]:
    """Deliveries in this state, the first one with a notification in it."""
    rows = installation.query(
        "INSERT INTO pipeline.delivery (receiver_id, entity_name, entity_identifier, state, reason,"
        " message_id, notification_count, updated_at)"
        " SELECT %s, 'issue', gen_random_uuid()::text, %s, 'because ' || n, '<x@shop.example>', 1,"
        " now() - n * interval '1 minute' FROM generate_series(1, %s) AS n RETURNING id::text",
        (receiver, state, count),
    )
    installation.query(
        "INSERT INTO pipeline.email_notification_log (receiver_id, entity_name, entity_identifier,"
        " data, processed_at, delivery_id)"
        ' SELECT receiver_id, entity_name, entity_identifier, \'{"field": "name"}\', now(), id'
        " FROM pipeline.delivery WHERE id = ANY (%s::uuid[])",
        ([id_ for (id_,) in rows],),
    )
    return [id_ for (id_,) in rows]


def state_of(installation: Installation, id_: str) -> str:
    return str(installation.value("SELECT state FROM pipeline.delivery WHERE id = %s", (id_,)))


# list ---------------------------------------------------------------------------------------------


def test_list_shows_deliveries_latest_change_first(installation: Installation) -> None:
    """Each on a line of its own, with its state, its receiver's address and its reason."""
    installation.add_person("ann")
    first, second = make(installation, "failed", count=2)

    ran = deliveries(installation, "list")

    header, *lines = ran.out.splitlines()
    assert ran.status == 0
    assert header.split() == ["id", "state", "since", "to", "about", "rows", "tries", "reason"]
    assert [line.split()[0] for line in lines] == [first, second]
    assert all("failed" in line and "ann@people.example" in line for line in lines)
    assert lines[0].endswith("because 1")


def test_list_filters_by_state_and_receiver(installation: Installation) -> None:
    """`--state`, which may be repeated, and `--receiver` narrow the list."""
    make(installation, "failed", "ann", 2)
    make(installation, "held", "bob", 3)
    make(installation, "sent", "bob", 4)

    def count(*options: str) -> int:
        return len(deliveries(installation, "list", "--json", *options).json)

    assert count() == 9
    assert count("--state", "held") == 3
    assert count("--state", "held", "--state", "failed") == 5
    assert count("--receiver", "bob") == 7
    assert count("--receiver", "bob", "--state", "sent") == 4


def test_list_stops_at_its_limit_and_says_so(installation: Installation) -> None:
    """`--limit` bounds the list; people are told that there may be more."""
    make(installation, "failed", count=5)

    ran = deliveries(installation, "list", "--limit", "2")

    assert len(ran.out.splitlines()) == 3
    assert "These are the first 2" in ran.err


def test_list_tells_programs_everything(installation: Installation) -> None:
    """`--json` has the row's columns, and what is known of recipient and item."""
    installation.add_person("ann")
    (id_,) = make(installation, "failed")
    installation.query(
        "INSERT INTO pipeline.entity SELECT entity_name, entity_identifier, 'WEB-12', 'Title', NULL"
        " FROM pipeline.delivery"
    )

    (row,) = deliveries(installation, "list", "--json").json

    assert row["id"] == id_
    assert (row["state"], row["reason"], row["notification_count"]) == ("failed", "because 1", 1)
    assert (row["email"], row["reference"]) == ("ann@people.example", "WEB-12")
    assert row["sent_at"] is None


def test_an_empty_list_is_a_list(installation: Installation) -> None:
    """Nothing found is nothing wrong; people are told so in words."""
    people = deliveries(installation, "list", "--state", "held")
    programs = deliveries(installation, "list", "--state", "held", "--json")

    assert (people.status, people.out) == (0, "")
    assert "No delivery matches" in people.err
    assert (programs.status, programs.json) == (0, [])


def test_list_knows_the_states(installation: Installation) -> None:
    """A state that doesn't exist is an error that names those that do."""
    ran = deliveries(installation, "list", "--state", "lost")

    assert ran.status == 2
    assert "'lost'" in ran.err
    assert "'suppressed'" in ran.err


# show ---------------------------------------------------------------------------------------------


def failed_once(installation: Installation) -> str:
    """A delivery that was deferred by greylisting and then refused."""
    rules = [
        Rule("rcpt", reply="451 4.7.1 Greylisted", times=1),
        Rule("rcpt", reply="550 5.1.1 No such user"),
    ]
    with ScriptedServer(rules) as server:
        installation.set(smtp_url=server.url)
        installation.add_person("ann", display_name="Ann <b>Bold</b>")
        installation.add_person("bob", display_name="Bob")
        installation.notify("ann", field="state", old="Todo", new="Done")
        installation.stack()
        installation.send()
        installation.query("UPDATE pipeline.delivery SET state = 'queued', next_attempt_at = now()")
        installation.send()
    return str(installation.delivery()["id"])


def test_show_tells_the_whole_history(installation: Installation) -> None:
    """State and reason, each attempt with stage and reply, what is stacked, and the mail."""
    id_ = failed_once(installation)

    ran = deliveries(installation, "show", id_)

    assert ran.status == 0
    for text in (
        f"Delivery {id_}",
        "failed: ",
        "Ann <b>Bold</b> <ann@people.example> (receiver ann)",
        "(issue 17)",
        "deferred, reached rcpt: 451 4.7.1 Greylisted",
        "failed, reached rcpt: 550 5.1.1 No such user",
        "updated state: Todo → Done",
        "by bob",
        "State: Todo → Done",
    ):
        assert text in ran.out


def test_S11_show_tells_programs_code_and_text(installation: Installation) -> None:
    """`--json` has every attempt's codes and reply, the notifications' data, and the mail."""
    id_ = failed_once(installation)

    shown = deliveries(installation, "show", id_, "--json").json

    assert shown["id"] == id_
    assert [
        (each["attempt_number"], each["stage"], each["smtp_code"], each["enhanced_code"])
        for each in shown["attempts"]
    ] == [(1, "rcpt", 451, "4.7.1"), (2, "rcpt", 550, "5.1.1")]
    assert shown["attempts"][1]["outcome"] == "failed"
    assert shown["notifications"][0]["data"]["new_value"] == "Done"
    assert "Todo → Done" in shown["mail"]["text"]
    assert shown["mail"]["envelope_to"] == "ann@people.example"
    assert "Message-ID: " + shown["message_id"] in shown["mail"]["content"]
    assert shown["no_mail"] is None


def test_show_writes_the_html_to_a_file(installation: Installation, tmp_path: Path) -> None:
    """`--html` writes what a browser shows."""
    id_ = failed_once(installation)
    file = tmp_path / "mail.html"

    ran = deliveries(installation, "show", id_, "--html", str(file))

    assert ran.status == 0
    assert "Done" in file.read_text()
    assert "<html" in file.read_text()
    assert str(file) in ran.err


def test_show_says_where_it_can_not_write(installation: Installation, tmp_path: Path) -> None:
    """A file in a folder that isn't there is an error, without a traceback."""
    id_ = failed_once(installation)

    ran = deliveries(installation, "show", id_, "--html", str(tmp_path / "no" / "mail.html"))

    assert ran.status == 1
    assert "Can't write to" in ran.err


def test_show_says_why_there_would_be_no_mail(installation: Installation, tmp_path: Path) -> None:
    """A recipient that is gone, and a file that was wanted all the same."""
    (id_,) = make(installation, "queued", "nobody")

    ran = deliveries(installation, "show", id_, "--html", str(tmp_path / "mail.html"))

    assert ran.status == 1
    assert "None: it would be suppressed: no such recipient: nobody" in ran.out
    assert "has no mail to write" in ran.err
    assert deliveries(installation, "show", id_, "--json").json["mail"] is None


def test_show_says_that_the_address_is_no_address(installation: Installation) -> None:
    """The bad value is named; nothing breaks."""
    installation.add_person("ann", email="not an address")
    (id_,) = make(installation, "queued")

    ran = deliveries(installation, "show", id_)

    assert ran.status == 0
    assert "it would fail" in ran.out
    assert "not an address" in ran.out


def test_show_bounds_what_it_prints(installation: Installation) -> None:
    """Of an enormous stack the newest notifications are shown, and how many there are."""
    installation.notify_many(1, rows=1000)
    installation.query("UPDATE pipeline.email_notification_log SET triggered_by_id = 'nobody'")
    installation.stack()
    id_ = str(installation.delivery()["id"])

    shown = deliveries(installation, "show", id_).out

    assert "Notifications (1,000, the newest 200)" in shown
    assert shown.count(" by nobody (") == 200


def test_show_is_safe_for_terminals(installation: Installation) -> None:
    """Escape sequences in names, comments and replies are not handed on."""
    installation.add_person("ann", display_name="A\x1b[31mnn\u202e")
    installation.notify(
        "ann", data={"verb": "updated", "field": "name", "new_value": "\x1b]0;x\x07"}
    )
    installation.stack()

    shown = deliveries(installation, "show", str(installation.delivery()["id"])).out

    assert not {"\x1b", "\x07", "\u202e"} & set(shown)


def test_show_takes_a_message_id(installation: Installation) -> None:
    """What stands in a mail's header finds its delivery."""
    id_ = failed_once(installation)

    ran = deliveries(installation, "show", installation.delivery()["message_id"])

    assert ran.out.startswith(f"Delivery {id_}\n")


@pytest.mark.parametrize("verb", ["show", "retry", "release", "cancel"])
def test_what_is_no_id_is_named(installation: Installation, verb: str) -> None:
    """A value that can't be a delivery's id is an error of usage."""
    ran = deliveries(installation, verb, "17")

    assert ran.status == 2
    assert "'17' is not the id of a delivery" in ran.err


@pytest.mark.parametrize("verb", ["show", "retry", "release", "cancel"])
def test_an_unknown_delivery_is_named(installation: Installation, verb: str) -> None:
    """An id that no delivery has ends with 1, and is told."""
    id_ = str(uuid.uuid4())

    ran = deliveries(installation, verb, id_)

    assert ran.status == 1
    assert id_ in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"verb": "updated", "field": "state", "old_value": "None", "new_value": "Done"},
         "updated state: nothing → Done"),
        ({"issue_activity": {"verb": "created", "field": "comment", "old_value": "None",
                             "new_value": "<p>Hello <b>you</b></p>"}},
         "created comment: nothing → Hello you"),
        (None, "null"),
        ([1, "a"], '[1, "a"]'),
        ("(too large to show)", "(too large to show)"),
        ({"what": "else"}, '{"what": "else"}'),
    ],
)  # fmt: skip
def test_a_notification_is_told_on_a_line(data: object, text: str) -> None:
    """Both forms of data, and whatever else somebody wrote."""
    assert told(data) == text


# retry, release, cancel ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "state", "after"),
    [("retry", "failed", "queued"), ("release", "held", "queued"), ("cancel", "held", "cancelled")],
)
def test_named_deliveries_are_all_tried(
    installation: Installation, verb: str, state: str, after: str
) -> None:
    """Those that can be are done; one that can't is named with the reason, and the code is 1."""
    good = make(installation, state, count=2)
    (bad,) = make(installation, "sending", "bob")

    ran = deliveries(installation, verb, good[0], bad, good[1], good[0])

    assert ran.status == 1
    assert [state_of(installation, id_) for id_ in good] == [after, after]
    assert state_of(installation, bad) == "sending"
    assert len(ran.out.splitlines()) == 2
    assert f"{good[0]}" in ran.out
    assert f": {state} → {after}" in ran.out
    assert f"Delivery {bad} not" in ran.err
    assert "being sent at this moment" in ran.err


def test_all_good_ends_with_0(installation: Installation) -> None:
    """When every named delivery could be done the code is 0."""
    assert deliveries(installation, "retry", *make(installation, "failed", count=2)).status == 0


def test_verbs_tell_programs_what_became_of_each(installation: Installation) -> None:
    """`--json` has one entry a delivery, refused ones too."""
    (good,) = make(installation, "failed")
    (bad,) = make(installation, "sent", "bob")
    installation.query("UPDATE pipeline.delivery SET sent_at = now() WHERE state = 'sent'")

    ran = deliveries(installation, "retry", good, bad, "--json")

    assert ran.status == 1
    assert ran.json[0] == {
        "id": good,
        "done": True,
        "was": "failed",
        "state": "queued",
        "refusal": None,
    }
    assert (ran.json[1]["done"], ran.json[1]["state"]) == (False, "sent")
    assert "it was sent at " in ran.json[1]["refusal"]


def test_deliveries_in_a_state_are_taken_in_bulk(installation: Installation) -> None:
    """`--state` takes up to 100 of them, or `--limit`, those first that have waited longest."""
    ids = make(installation, "failed", count=103)
    make(installation, "sent", "bob")

    few = deliveries(installation, "retry", "--state", "failed", "--limit", "1")
    most = deliveries(installation, "retry", "--state", "failed")
    rest = deliveries(installation, "retry", "--state", "failed", "--all")
    none = deliveries(installation, "retry", "--state", "failed", "--all")

    assert (few.status, few.out) == (0, "Retried: 1 delivery.\n")
    assert "first 1;" in few.err
    assert state_of(installation, ids[-1]) == "queued"
    assert most.out == "Retried: 100 deliveries.\n"
    assert rest.out == "Retried: 2 deliveries.\n"
    assert (none.status, none.out) == (1, "")
    assert "No delivery matches" in none.err
    assert installation.states() == {"queued": 103, "sent": 1}


def test_bulk_is_narrowed_by_receiver(installation: Installation) -> None:
    """`--receiver` leaves everybody else's alone."""
    make(installation, "held", "ann", 2)
    make(installation, "held", "bob", 3)

    ran = deliveries(installation, "cancel", "--state", "held", "--receiver", "bob", "--json")

    assert len(ran.json) == 3
    assert installation.states() == {"held": 2, "cancelled": 3}


def test_several_states_are_taken_together(installation: Installation) -> None:
    """`--state` may be repeated."""
    make(installation, "failed", "ann")
    make(installation, "suppressed", "bob")

    deliveries(installation, "retry", "--state", "failed", "--state", "suppressed")

    assert installation.states() == {"queued": 2}


@pytest.mark.parametrize(
    ("verb", "state"), [("retry", "sent"), ("release", "failed"), ("cancel", "sent")]
)
def test_a_state_that_a_verb_does_not_take_is_an_error(
    installation: Installation, verb: str, state: str
) -> None:
    """Each verb knows the states that it can take deliveries from."""
    ran = deliveries(installation, verb, "--state", state)

    assert ran.status == 2
    assert f"'{state}'" in ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--all",),
        ("--state", "failed", str(uuid.uuid4())),
        (str(uuid.uuid4()), "--all"),
        (str(uuid.uuid4()), "--limit", "3"),
        (str(uuid.uuid4()), "--receiver", "ann"),
        ("--state", "failed", "--all", "--limit", "3"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(
    installation: Installation, arguments: tuple[str, ...]
) -> None:
    """Either ids or states, and what narrows the states only with them."""
    make(installation, "failed")

    assert deliveries(installation, "retry", *arguments).status == 2
    assert installation.states() == {"failed": 1}
