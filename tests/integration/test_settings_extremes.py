"""Every value that a setting accepts is one that the whole installation can carry."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest

from pipeline.settings import SettingError, Settings
from tests.support.installation import Installation
from tests.support.smtp_server import Rule, ScriptedServer

#: From the smallest and from the largest on, the first that is accepted counts.
SMALL = ["1ms", "500ms", "1", "1m"]
LARGE = ["3650d", "365d", "1d", "1m", "999999999", "1000"]

#: A cap must not be below what it caps.
PAIRS = {
    "retry_cap": "retry_base",
    "retry_base": "retry_cap",
    "relay_pause_cap": "relay_pause",
    "relay_pause": "relay_pause_cap",
}


def accepted(name: str, texts: list[str]) -> Any:
    for text in texts:
        others = {"PIPELINE_RETRY_CAP": "3650d", "PIPELINE_RELAY_PAUSE_CAP": "3650d"}
        if name.endswith("_cap"):
            others = {"PIPELINE_RETRY_BASE": "1ms", "PIPELINE_RELAY_PAUSE": "1ms"}
        try:
            return getattr(Settings.load({**others, f"PIPELINE_{name.upper()}": text}), name)
        except SettingError:
            continue
    raise AssertionError(f"{name} accepts none of {texts}")


NAMES = [
    each.name
    for each in fields(Settings)
    if isinstance(each.default, int | timedelta) or each.name == "relay_rate"
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("texts", [SMALL, LARGE], ids=["smallest", "largest"])
def test_an_installation_works_with_each_extreme(
    installation: Installation, name: str, texts: list[str]
) -> None:
    """Mail is stacked, refused for now, taken up again, sent and purged; nothing overflows."""
    value = accepted(name, texts)
    others = {PAIRS[name]: value} if name in PAIRS else {}
    later = Rule("rcpt", reply="451 4.7.1 Later", times=1)
    with ScriptedServer([later]) as server:
        installation.set(smtp_url=server.url, **{**others, name: value})
        for receiver in ("ann", "bob"):
            installation.add_person(receiver)
            installation.notify(receiver)
        assert installation.stack().created_count == 2
        for _ in range(3):
            installation.send()
            installation.recovery.run()
            installation.recovery.purge()
            installation.query("UPDATE pipeline.delivery SET next_attempt_at = now()")
    states = installation.states()
    # What a setting says is too old, or has been tried often enough, fails with that reason.
    allowed = {"sent", "queued", "deferred", "failed"}
    if name in ("connect_timeout", "command_timeout", "data_timeout", "reply_timeout"):
        allowed |= {"uncertain"}
    assert set(states) <= allowed, states
    assert (
        installation.query(
            "SELECT error FROM pipeline.delivery_attempt WHERE error LIKE '%%Error%%'"
        )
        == []
    )
    if texts is LARGE:
        assert sum(states.values()) == 2
        assert states.get("sent", 0) >= 1
