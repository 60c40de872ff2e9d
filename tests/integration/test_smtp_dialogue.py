"""Dialogues: talk that says what it waits for, carried on by somebody else."""

from __future__ import annotations

import select
import socket
import time

import pytest

from pipeline.smtp import BeforeDot, Wait
from pipeline.smtp.dialogue import Dialogue, run, wait_for
from tests.support.smtp_client import CONTENT, session
from tests.support.smtp_server import Rule, ScriptedServer
from tests.support.waiting import wait_until


def test_it_says_what_it_waits_for() -> None:
    """First for the connection, in the end whether the dot may be sent; never for ever."""
    with ScriptedServer() as server:
        one = session(server.url)
        dialogue = one.dialogue("a@example.org", "ada@example.org", CONTENT)
        wanted = next(dialogue)
        waits = []
        while not isinstance(wanted, BeforeDot):
            waits.append(wanted)
            wanted = dialogue.send(wait_for(wanted))
        assert waits
        assert all(wait.socket is not None for wait in waits)
        now = time.monotonic()
        assert all(wait.deadline <= now + one.timeouts.command for wait in waits)
        dialogue.close()
        one.close()


def test_one_that_is_ended_before_its_result_drops_the_connection() -> None:
    """The server can't have accepted the message, and the connection is not used again."""
    with ScriptedServer([Rule("rcpt", hold="gate", times=1)]) as server:
        one = session(server.url)
        dialogue = one.dialogue("a@example.org", "ada@example.org", CONTENT)
        wanted = next(dialogue)
        while server.stage_counts["rcpt"] == 0:
            assert isinstance(wanted, Wait)
            if wait_for(Wait(wanted.socket, wanted.events, time.monotonic() + 0.05)):
                wanted = dialogue.send(True)
        dialogue.close()
        server.release("gate")
        wait_until(lambda: server.open_connection_count == 0)
        assert server.accepted_count == 0
        one.close()


def test_what_goes_wrong_outside_is_thrown_into_it() -> None:
    """It can put its things away, and the caller hears of it all the same."""
    told: list[str] = []

    def dialogue() -> Dialogue[None]:
        try:
            yield BeforeDot()
        except ValueError as error:
            told.append(str(error))
            raise

    def refuse() -> bool:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run(dialogue(), refuse)
    assert told == ["no"]


def test_a_wait_ends_at_its_deadline_or_when_its_socket_is_closed() -> None:
    """What never comes is not waited for, and a closed socket is found out by who uses it."""
    here, there = socket.socketpair()
    with here, there:
        assert not wait_for(Wait(here, select.POLLIN, time.monotonic() + 0.01))
        there.send(b"x")
        assert wait_for(Wait(here, select.POLLIN, time.monotonic() + 60))
    assert wait_for(Wait(here, select.POLLIN, time.monotonic() + 60))
    assert not wait_for(Wait(None, 0, time.monotonic() + 0.01))
