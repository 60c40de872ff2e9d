"""How much a relay may be sent: a limit that holds for all processes together."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from pipeline import Settings
from pipeline.settings import SettingError
from tests.support.installation import Installation
from tests.support.smtp_server import ScriptedServer


def test_senders_together_keep_to_the_messages_a_second_of_the_relay(
    installation: Installation,
) -> None:
    """Three senders with connections of their own share the rate, and spread it evenly."""
    rate, mails = 20, 15
    with ScriptedServer() as server:
        installation.set(smtp_url=server.url, chunk=2)
        installation.notify_many(mails)
        installation.stack()

        def send(_: int) -> dict[str, int]:
            other = Installation(installation.url)
            other.set(smtp_url=server.url, chunk=2, relay_rate=rate)
            try:
                return other.send()
            finally:
                other.close()

        with ThreadPoolExecutor(3) as pool:
            sent = list(pool.map(send, range(3)))

        assert sum(each.get("sent", 0) for each in sent) == mails
        assert sum(bool(each) for each in sent) > 1
        times = sorted(accepted.at for accepted in server.accepted)
    # A message may leave late, never before its moment: so none of these is shorter, but for the
    # time that one takes to be accepted.
    for distance in (5, 10, mails - 1):
        shortest = min(b - a for a, b in zip(times, times[distance:], strict=False))
        assert shortest >= distance / rate - 0.2


def test_without_a_limit_nothing_is_asked(installation: Installation) -> None:
    """The limit costs nothing where none is set."""
    with ScriptedServer() as server:
        installation.set(smtp_url=server.url)
        installation.notify_many(3)
        installation.stack()
        assert installation.send() == {"sent": 3}
    assert installation.value("SELECT count(*) FROM pipeline.relay") == 0


def test_a_rate_that_is_none_is_refused() -> None:
    """Less than one a second can't be said, and the message names the setting."""
    with pytest.raises(SettingError, match="PIPELINE_RELAY_RATE '0'"):
        Settings.load({"PIPELINE_RELAY_RATE": "0"})
