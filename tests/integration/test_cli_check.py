"""`pipeline check`: each thing that it looks for, found."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from pipeline.check import database as database_checks
from tests.support.commands import Ran, run
from tests.support.installation import Installation
from tests.support.postgres import execute
from tests.support.smtp_server import Rule, ScriptedServer

#: The server that tests run on would lose data in a crash of the machine, and is told so.
EXPECTED = {"commits"}


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


def check(url: str | None, server: ScriptedServer, **settings: object) -> Ran:
    given = {
        "smtp_url": server.url,
        "mail_from": "Tracker <tracker@tracker-mail.org>",
        "connect_timeout": "2s",
    }
    return run("check", "--json", database_url=url, **{**given, **settings})


def findings(ran: Ran, name: str) -> list[dict[str, Any]]:
    return [finding for finding in ran.json["findings"] if finding["name"] == name]


def the(ran: Ran, name: str) -> dict[str, Any]:
    """The only finding of this name."""
    (finding,) = findings(ran, name)
    return finding


def levels(ran: Ran, level: str) -> set[str]:
    return {each["name"] for each in ran.json["findings"] if each["level"] == level}


def test_a_good_installation_passes(installation: Installation, server: ScriptedServer) -> None:
    """Everything is looked at and nothing fails, and no mail has been sent for it."""
    installation.query(
        "INSERT INTO pipeline.process (kind, name) VALUES ('worker', 'a:1'), ('scheduler', 'a:2')"
    )

    ran = check(installation.url, server)

    assert ran.status == 0
    assert ran.json["ok"] is True
    assert levels(ran, "fail") == set()
    assert levels(ran, "warn") == EXPECTED
    assert levels(ran, "ok") == {
        *("settings", "database", "server", "connections", "clock", "vacuum", "schema", "queue"),
        *("rights", "recipients", "schedulers", "workers", "sender", "relay"),
    }
    assert server.accepted_count == 0
    assert server.stage_counts["mail"] == 0


def test_people_get_a_line_each_and_what_to_do(
    installation: Installation, server: ScriptedServer
) -> None:
    """Level, name and text; below what is not well the advice; the code is 1 when one fails."""
    ran = run("check", database_url=installation.url, smtp_url="smtp://127.0.0.1:1")

    assert ran.status == 1
    assert "ok    schema       version" in ran.out
    assert "fail  relay        can't connect to 127.0.0.1:1" in ran.out
    assert " " * 19 + "Check host and port in PIPELINE_SMTP_URL" in ran.out
    assert " " * 19 + "Run `pipeline worker`." in ran.out


# settings -----------------------------------------------------------------------------------------


def test_a_setting_that_can_not_be_used_is_named(database_url: str, server: ScriptedServer) -> None:
    """It is the only finding: nothing else can be looked at."""
    ran = check(database_url, server, lease="soon")

    assert ran.status == 1
    assert len(ran.json["findings"]) == 1
    assert "PIPELINE_LEASE" in the(ran, "settings")["text"]
    assert "'soon'" in the(ran, "settings")["text"]


def test_C13_a_variable_that_nothing_reads_is_named(
    database_url: str, server: ScriptedServer
) -> None:
    """A misspelt name is told, with the one that may be meant; it is no failure."""
    ran = check(database_url, server, sendres="3", data_dir="/tmp/x", unheard_of="1")

    told = [each for each in findings(ran, "settings") if each["level"] == "warn"]
    assert ran.status == 0
    assert [each["text"].split()[0] for each in told] == ["PIPELINE_SENDRES", "PIPELINE_UNHEARD_OF"]
    assert "PIPELINE_SENDERS" in told[0]["advice"]


# the database -------------------------------------------------------------------------------------


def test_a_database_that_is_away_is_told(server: ScriptedServer) -> None:
    """The database fails, and the rest is still looked at; no password is shown."""
    ran = check("postgresql://app:secret@127.0.0.1:1/shop", server)

    assert ran.status == 1
    assert levels(ran, "fail") == {"database"}
    assert the(ran, "relay")["level"] == "ok"
    assert "secret" not in ran.out


def test_an_unprepared_database_is_told(empty_database_url: str, server: ScriptedServer) -> None:
    """Schema and queue are missing, and the command that makes them is named."""
    ran = check(empty_database_url, server)

    assert levels(ran, "fail") == {"schema", "queue"}
    assert "`pipeline init`" in the(ran, "schema")["advice"]
    assert "`pipeline init`" in the(ran, "queue")["advice"]


@pytest.mark.parametrize(("version", "advice"), [(0, "`pipeline init`"), (999, "newer version")])
def test_another_version_of_the_schema_is_told(
    database_url: str, server: ScriptedServer, version: int, advice: str
) -> None:
    """Older and newer ones, each with what to do."""
    execute(database_url, "UPDATE pipeline.schema_version SET version = %s", (version,))

    schema = the(check(database_url, server), "schema")

    assert schema["level"] == "fail"
    assert str(version) in schema["text"]
    assert advice in schema["advice"]


def test_a_queue_that_fills_the_lock_table_is_told(
    database_url: str, server: ScriptedServer
) -> None:
    """A backlog of any queue in the table that a stock consumer would choke on."""
    execute(
        database_url,
        "INSERT INTO dramatiq.queue (message_id, queue_name, state, message)"
        " SELECT gen_random_uuid(), 'shop', 'queued', '{}' FROM generate_series(1, "
        " current_setting('max_locks_per_transaction')::int"
        " * current_setting('max_connections')::int / 2 + 1)",
    )

    queue = the(check(database_url, server), "queue")

    assert queue["level"] == "warn"
    assert "max_locks_per_transaction" in queue["advice"]


@contextmanager
def another_user(url: str) -> Iterator[tuple[str, str]]:
    """A role of the test's own, and the database's address with it."""
    name = f"test_{uuid.uuid4().hex[:8]}"
    execute(url, f"CREATE ROLE {name} LOGIN")
    try:
        yield name, url.replace("postgres@", f"{name}@", 1)
    finally:
        execute(url, f"DROP OWNED BY {name}")
        execute(url, f"DROP ROLE {name}")


def test_missing_rights_are_told_by_table(database_url: str, server: ScriptedServer) -> None:
    """A user that may not do everything: which rights on which tables it lacks."""
    with another_user(database_url) as (user, url):
        execute(
            database_url,
            f"GRANT USAGE ON SCHEMA pipeline, dramatiq TO {user};"
            f"GRANT ALL ON ALL TABLES IN SCHEMA pipeline, dramatiq TO {user};"
            f"REVOKE INSERT, UPDATE ON pipeline.recipient FROM {user};"
            f"REVOKE DELETE ON pipeline.delivery FROM {user}",
        )
        rights = the(check(url, server), "rights")

    assert rights["level"] == "fail"
    assert rights["text"] == f"{user} lacks DELETE on pipeline.delivery"


def test_a_view_that_lacks_a_column_is_told(database_url: str, server: ScriptedServer) -> None:
    """A shop's own view in place of the table, without what a mail needs."""
    execute(
        database_url,
        "DROP TABLE pipeline.recipient;"
        " CREATE VIEW pipeline.recipient AS SELECT '1'::text AS id, 'a@b.example'::text AS email",
    )

    recipients = the(check(database_url, server), "recipients")

    assert recipients["level"] == "fail"
    assert "display_name" in recipients["text"]


def test_a_clock_that_differs_is_told(database_url: str, server: ScriptedServer) -> None:
    """How far, and in which direction; it is no failure, since the database's clock decides."""
    execute(
        database_url,
        "CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql"
        " AS $$SELECT pg_catalog.clock_timestamp() + interval '1 hour'$$",
    )
    url = f"{database_url}&options=-csearch_path%3Dpublic,pg_catalog"

    clock = the(check(url, server), "clock")

    assert clock["level"] == "warn"
    assert "3600 s behind the database" in clock["text"]


def test_D22_an_old_transaction_is_told(
    installation: Installation, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who holds vacuum back, and how to end it."""
    monkeypatch.setattr(database_checks, "OLD", timedelta(0))
    installation.query("BEGIN ISOLATION LEVEL REPEATABLE READ")
    installation.query("SELECT 1 FROM pipeline.delivery")
    pid = installation.connection.info.backend_pid

    found = findings(check(installation.url, server), "vacuum")

    assert [each["level"] for each in found] == ["warn"]
    assert f"process {pid} (pipeline test), open for" in found[0]["text"]
    assert f"pg_terminate_backend({pid})" in found[0]["advice"]


def test_too_few_connections_are_told(database_url: str, server: ScriptedServer) -> None:
    """More senders than the server has room for."""
    connections = the(check(database_url, server, senders=1000), "connections")

    assert connections["level"] == "warn"
    assert "PIPELINE_SENDERS" in connections["advice"]


def test_commits_that_may_be_lost_are_told(database_url: str, server: ScriptedServer) -> None:
    """`synchronous_commit = off` lets a crash lose what was committed last."""
    name = execute(database_url, "SELECT current_database()")[0][0]
    execute(database_url, f"ALTER DATABASE {name} SET synchronous_commit = off")

    commits = findings(check(database_url, server), "commits")

    assert any("synchronous_commit is off" in each["text"] for each in commits)


def test_nobody_at_work_is_told(database_url: str, server: ScriptedServer) -> None:
    """Neither scheduler nor worker was seen: a warning, for they may be about to start."""
    ran = check(database_url, server)

    assert ran.status == 0
    assert {"schedulers", "workers"} <= levels(ran, "warn")


# the relay and the sender -------------------------------------------------------------------------


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_a_relay_is_verified_and_logged_in_to(database_url: str, security: Any) -> None:
    """Encryption, certificate and login are tried out."""
    with ScriptedServer(security=security, credentials=("me", "secret")) as secured:
        relay = the(check(database_url, secured), "relay")
        assert secured.login_count == 1

    assert relay["level"] == "ok"
    assert "certificate verified, logged in as me" in relay["text"]


def test_a_certificate_that_can_not_be_verified_is_told(database_url: str) -> None:
    """Without its authority the certificate is not trusted; the advice names the option."""
    with ScriptedServer(security="tls") as secured:
        relay = the(check(database_url, secured, smtp_url=secured.url.split("?")[0]), "relay")

    assert relay["level"] == "fail"
    assert "certificate" in relay["text"]
    assert "ca_file" in relay["advice"]


@pytest.mark.parametrize(
    ("rule", "text", "advice"),
    [
        (Rule("auth", reply="535 5.7.8 Bad credentials"), "535 5.7.8", "the password"),
        (Rule("auth", reply="454 4.7.0 Too many logins"), "454 4.7.0", "try again later"),
        (Rule("connect", reply="554 5.7.1 Not you"), "554 5.7.1", "The relay's answer"),
        (Rule("connect", do="silence"), "no answer", "firewall"),
        (Rule("ehlo", do="close"), "EHLO", "firewall"),
    ],
)
def test_a_relay_that_does_not_want_us_is_told(
    database_url: str, rule: Rule, text: str, advice: str
) -> None:
    """Its answer is shown, with what to do."""
    with ScriptedServer([rule], credentials=("me", "secret")) as refusing:
        ran = check(database_url, refusing)

    relay = the(ran, "relay")
    assert ran.status == 1
    assert relay["level"] == "fail"
    assert text in relay["text"]
    assert advice in relay["advice"]
    assert "secret" not in ran.out


def test_S02_a_name_that_does_not_resolve_is_told(
    database_url: str, server: ScriptedServer
) -> None:
    """An unknown host is named."""
    relay = the(check(database_url, server, smtp_url="smtp://relay.invalid:25"), "relay")

    assert relay["level"] == "fail"
    assert "relay.invalid" in relay["text"]


@pytest.mark.parametrize(
    "sender",
    ["a@localhost", "a@host.localdomain", "a@shop.example", "a@mail.internal", "a@127.0.0.1"],
)
def test_H07_a_sender_without_a_real_domain_is_told(
    database_url: str, server: ScriptedServer, sender: str
) -> None:
    """It fails with a real relay, and is a warning with one on this machine."""
    here = the(check(database_url, server, mail_from=sender), "sender")
    there = the(
        check(database_url, server, mail_from=sender, smtp_url="smtp://192.0.2.1:25"), "sender"
    )

    assert (here["level"], there["level"]) == ("warn", "fail")
    assert "PIPELINE_MAIL_FROM" in here["advice"]
