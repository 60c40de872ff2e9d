"""How commands look: on terminals, wide and narrow, and where no person looks."""

from __future__ import annotations

import re

import pytest

from pipeline.cli.output import clean, count, span
from pipeline.cli.reference import reference
from tests.support.commands import ROOT, environment, run, run_on_terminal
from tests.support.postgres import execute

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def fill(url: str) -> None:
    execute(
        url,
        "INSERT INTO pipeline.delivery (receiver_id, entity_name, entity_identifier, state, reason,"
        " message_id) SELECT 'somebody with a rather long id ' || n, 'issue', '李梅 ' || n,"
        " 'failed', 'a reason that is too long for the line of a terminal, whatever it says',"
        " '<x@y.example>' FROM generate_series(1, 3) AS n",
    )


def test_the_reference_is_what_the_commands_say() -> None:
    """docs/commands.md is written from the code: `python -m pipeline.cli.reference` does it."""
    assert (ROOT / "docs" / "commands.md").read_text() == reference()


def test_colour_is_for_terminals(database_url: str) -> None:
    """On a terminal there is colour, with NO_COLOR there is none, and elsewhere there never is."""
    fill(database_url)
    settings = environment(database_url)

    assert ESCAPE.search(run_on_terminal("status", environment=settings))
    plain = run_on_terminal("status", environment=settings | {"NO_COLOR": "1"})
    assert not re.search(r"\x1b\[3[0-9]m", plain)
    assert not ESCAPE.search(run("status", database_url=database_url).out)


@pytest.mark.parametrize("columns", [60, 80, 100, 160, 300])
def test_a_table_fits_its_terminal(database_url: str, columns: int) -> None:
    """Every delivery has one line, which is not longer than the terminal is wide."""
    from rich.cells import cell_len

    fill(database_url)

    shown = run_on_terminal(
        "deliveries", "list", environment=environment(database_url), columns=columns
    )

    lines = [line for line in ESCAPE.sub("", shown).replace("\r", "").split("\n") if line]
    assert len(lines) == 4
    assert all(cell_len(line) <= columns for line in lines)
    assert all(re.match(r"[0-9a-f-]{36}  failed", line) for line in lines[1:])


def test_what_people_copy_stays_in_one_piece(database_url: str) -> None:
    """An address or an identifier is not broken into lines, however narrow the terminal is."""
    message_id = f"<{'x' * 80}@y.example>"
    ((id_,),) = execute(
        database_url,
        "INSERT INTO pipeline.delivery (receiver_id, entity_name, entity_identifier, state, reason,"
        f" message_id) VALUES ('ann', 'issue', '17', 'failed', 'none', '{message_id}')"
        " RETURNING id::text",
    )

    shown = run_on_terminal(
        "deliveries", "show", id_, environment=environment(database_url), columns=60
    )

    assert message_id in ESCAPE.sub("", shown)


def test_what_is_piped_is_whole(database_url: str) -> None:
    """Where no person looks nothing is cut, however long."""
    fill(database_url)

    lines = run("deliveries", "list", database_url=database_url).out.splitlines()

    assert all(line.endswith("whatever it says") for line in lines[1:])


def test_a_terminal_shows_progress_and_clears_it(database_url: str) -> None:
    """While stacking there is a bar, and afterwards only what was done."""
    execute(
        database_url,
        "INSERT INTO pipeline.email_notification_log (receiver_id, entity_name, entity_identifier,"
        " data) SELECT n::text, 'issue', '1', '{}' FROM generate_series(1, 2000) AS n",
    )

    shown = run_on_terminal("stack", environment=environment(database_url))

    assert "Stacking" in shown
    assert "2000/2000" in shown
    assert ESCAPE.sub("", shown).replace("\r", "").split("\n")[-2].startswith("Claimed 2,000")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (True, "yes"),
        (1234567, "1,234,567"),
        ("plain 李梅 🎉", "plain 李梅 🎉"),
        ("a\x1b[31mb\x00\u202ec\ud800d\ne", "a [31mb  c d e"),
    ],
)
def test_values_are_made_fit_for_terminals(value: object, text: str) -> None:
    """Control and direction characters and lone surrogates become spaces."""
    assert clean(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (-0.3, "0.0 s"),
        (0.04, "0.0 s"),
        (9.96, "10.0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (3725, "1 h 2 min"),
        (90061, "1 d 1 h"),
    ],
)
def test_lengths_of_time_have_two_units_at_the_most(seconds: float | None, text: str) -> None:
    """People want the size of it."""
    assert span(seconds) == text


def test_numbers_have_their_noun() -> None:
    """One delivery, two deliveries, two thousand of them with a separator."""
    assert count(1, "delivery", "deliveries") == "1 delivery"
    assert count(2000, "delivery", "deliveries") == "2,000 deliveries"
    assert count(0, "mail") == "0 mails"
