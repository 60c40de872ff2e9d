"""Whatever a server does, the outcome agrees with what it really accepted."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.smtp import Outcome, Timeouts
from tests.support.smtp_client import send, session
from tests.support.smtp_rules import Action, Stage
from tests.support.smtp_server import Rule, ScriptedServer

STAGES: list[Stage] = [
    "connect", "ehlo", "rset", "mail", "rcpt", "data", "body", "dot", "reply",
]  # fmt: skip
REFUSALS = ["421 4.7.0 Bye", "450 4.2.1 Later", "451 Later", "530 5.7.0 Log in", "550 5.1.1 No"]
GARBAGE = [b"?\r\n", b"25", b"250-a\r\n550 b\r\n", b"451 x", b"\0\r\n", b"250 a\r\n250 b\r\n"]
ENDINGS: list[Action | None] = ["close", "reset", None]


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    """One thing that goes wrong, once."""
    stage = draw(st.sampled_from(STAGES))
    skip = draw(st.integers(0, 1))
    do = draw(st.sampled_from(ENDINGS))
    if draw(st.booleans()):
        # A refusal after acceptance would be a server that lies: it is left out here.
        reply = None if stage == "reply" else draw(st.sampled_from(REFUSALS))
        return Rule(stage, skip=skip, times=1, reply=reply, do=do)
    raw = draw(st.sampled_from(GARBAGE))
    if stage in ("body", "dot", "reply") and raw[3:4] == b" ":
        raw = b"?\r\n"  # a definite answer that isn't true: the same lie
    # What may be half a reply must not be waited for in every example.
    return Rule(stage, skip=skip, times=1, raw=raw, do=do or "close")


@settings(max_examples=60, deadline=None)
@given(st.lists(rules(), max_size=4), st.lists(st.booleans(), min_size=1, max_size=6))
def test_S03_the_outcome_agrees_with_what_was_accepted(
    wrong: list[Rule], answers: list[bool]
) -> None:
    """Sent means accepted; accepted means sent or uncertain; uncertain means the dot left."""
    timeouts = Timeouts(connect=2, command=2, data=2, reply=2)
    with ScriptedServer(wrong) as server:
        one = session(server.url, timeouts, idle_check=0.0)
        for answer in answers:
            accepted, dots = server.accepted_count, server.stage_counts["dot"]
            result = send(one, before_dot=lambda answer=answer: answer)  # type: ignore[misc]
            accepted = server.accepted_count - accepted
            dots = server.stage_counts["dot"] - dots
            assert accepted <= 1
            if result.outcome is Outcome.SENT:
                assert accepted == 1
            elif result.outcome is Outcome.UNCERTAIN:
                # The server may have left with the dot on its way to it.
                assert answer
            else:
                assert accepted == 0
            if not answer:
                assert dots == 0
        one.close()
