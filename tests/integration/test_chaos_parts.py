"""The parts of a chaos run do what they are to do to others."""

from __future__ import annotations

import os
import smtplib
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psycopg2
import pytest

from pipeline.chaos.ground import ScratchGround
from pipeline.chaos.plan import Mood
from pipeline.chaos.processes import CLOCK
from pipeline.chaos.proxy import Proxy
from pipeline.chaos.relay import MoodyRelay
from tests.support.commands import descendants
from tests.support.postgres import execute
from tests.support.waiting import wait_until

MAIL = (
    b"Message-ID: <1@chaos>\r\nSubject: x\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n"
    b"n0x1x0 and n0x1x1\r\n"
)


@pytest.fixture
def relay() -> Iterator[MoodyRelay]:
    """A server that takes everything so far."""
    with MoodyRelay(1) as started:
        yield started


def hand_over(port: int, content: bytes = MAIL) -> None:
    with smtplib.SMTP("127.0.0.1", port, timeout=20) as client:
        client.sendmail("a@chaos.example", ["p1@chaos.example"], content)


def test_the_relay_remembers_what_it_took_and_what_it_tells_of(relay: MoodyRelay) -> None:
    """By Message-ID and recipient, with the notifications in the text."""
    hand_over(relay.port)

    (taken,) = relay.taken
    assert (taken.message_id, taken.recipient) == ("<1@chaos>", "p1@chaos.example")
    assert taken.tokens == {"n0x1x0", "n0x1x1"}


def test_the_relay_takes_mails_whose_reply_it_loses(relay: MoodyRelay) -> None:
    """The client knows nothing of some of those that were taken."""
    relay.mood = Mood.LOSING
    known = 0
    for _ in range(30):
        with suppress(smtplib.SMTPException, OSError):
            hand_over(relay.port)
            known += 1
    assert relay.taken_count == 30
    assert 0 < known < 30


def test_the_relay_refuses_for_good_only_what_it_says_it_refused(relay: MoodyRelay) -> None:
    """Each 5xx is remembered, by address or by Message-ID."""
    relay.mood = Mood.REFUSING
    refused = set()
    for _ in range(100):
        try:
            hand_over(relay.port)
        except smtplib.SMTPRecipientsRefused:
            refused.add("p1@chaos.example")
        except smtplib.SMTPDataError:
            refused.add("<1@chaos>")
    assert refused
    assert relay.refused == refused


@pytest.mark.parametrize("mood", [Mood.BUSY, Mood.GREYLISTING, Mood.FULL, Mood.DROPPING])
def test_a_mail_that_the_relay_did_not_take_is_not_remembered(
    relay: MoodyRelay, mood: Mood
) -> None:
    """What the client was told is what is so, while no reply is lost."""
    relay.mood = mood
    known = 0
    for _ in range(20):
        with suppress(smtplib.SMTPException, OSError):
            hand_over(relay.port)
            known += 1
    assert relay.taken_count == known < 20


def test_a_network_is_cut_stalled_and_mended(relay: MoodyRelay) -> None:
    """A cut resets connections and refuses new ones; a stall only holds bytes back."""
    with Proxy(lambda: socket.create_connection(("127.0.0.1", relay.port))) as proxy:
        hand_over(proxy.port)
        with socket.create_connection(("127.0.0.1", proxy.port)) as client:
            assert client.recv(100).startswith(b"220")
            assert proxy.cut() >= 1
            with suppress(ConnectionResetError):
                assert client.recv(100) == b""
        with pytest.raises((OSError, smtplib.SMTPException)):
            hand_over(proxy.port)
        proxy.mend()
        hand_over(proxy.port)

        proxy.stall()
        with socket.create_connection(("127.0.0.1", proxy.port)) as client:
            client.settimeout(0.3)
            with pytest.raises(TimeoutError):
                client.recv(100)
            proxy.mend()
            client.settimeout(60)
            assert client.recv(100).startswith(b"220")
    assert relay.taken_count == 2


def test_a_half_open_connection_is_over_for_the_server_alone(relay: MoodyRelay) -> None:
    """The client is told nothing until the network is mended; new connections work meanwhile."""
    with Proxy(lambda: socket.create_connection(("127.0.0.1", relay.port))) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port)) as client:
            assert client.recv(100).startswith(b"220")
            assert proxy.half_open() == 1
            client.sendall(b"NOOP\r\n")
            client.settimeout(0.3)
            with pytest.raises(TimeoutError):
                client.recv(100)
            with socket.create_connection(("127.0.0.1", proxy.port), 60) as other:
                assert other.recv(100).startswith(b"220")
            proxy.mend()
            client.settimeout(60)
            with suppress(ConnectionResetError):
                assert client.recv(100) == b""
        hand_over(proxy.port)
    assert relay.taken_count == 1


def test_a_slow_network_brings_everything(relay: MoodyRelay) -> None:
    """Each packet takes its time."""
    with Proxy(lambda: socket.create_connection(("127.0.0.1", relay.port))) as proxy:
        proxy.delay(0.02)
        hand_over(proxy.port)
        proxy.mend()
        hand_over(proxy.port)
    assert relay.taken_count == 2


def test_a_process_with_a_wrong_clock_works_and_is_wrong() -> None:
    """Time, dates, log lines and the queue's library go by it; others' datetimes are still such."""
    program = """
import datetime, logging, sys, time, psycopg2, dramatiq
from datetime import datetime as imported
logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s")
logging.warning("a line")
assert isinstance(psycopg2.Timestamp(2026, 1, 1).adapted, imported)
assert isinstance(imported.now(), imported) and imported.fromtimestamp(0).year == 1970
message = dramatiq.Message("q", "a", (), {}, {})
print(time.time(), imported.now(datetime.UTC).timestamp(), message.message_timestamp / 1000)
"""
    environment = os.environ | {"PYTHONPATH": str(CLOCK), "PIPELINE_CHAOS_CLOCK": "600"}
    told = subprocess.run(
        [sys.executable, "-c", program, "x"],
        env=environment, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    right = float(subprocess.check_output(["date", "+%s"]))

    assert told.stderr.endswith("a line\n")
    assert "Error" not in told.stderr
    for shown in told.stdout.split():
        assert 500 < float(shown) - right < 700


def test_a_scratch_database_is_made_beside_the_users_and_dropped(database_url: str) -> None:
    """It is reached through a port of this machine; nothing of it is left running."""
    ground = ScratchGround(database_url)
    before = set(descendants(os.getpid()))
    there = "SELECT datname FROM pg_database WHERE datname LIKE 'pipeline\\_chaos\\_%%'"
    ground.start()
    try:
        assert (ground.name,) in execute(database_url, there)
        with (
            Proxy(ground.connect) as proxy,
            closing(psycopg2.connect(ground.url_through(proxy.port))) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("SELECT current_database()")
            assert cursor.fetchone() == (ground.name,)
            with pytest.raises(AssertionError, match="not ours"):
                ground.restart()
    finally:
        ground.close()
    wait_until(lambda: (ground.name,) not in execute(database_url, there))
    assert set(descendants(os.getpid())) <= before
    assert Path(CLOCK, "sitecustomize.py").exists()
