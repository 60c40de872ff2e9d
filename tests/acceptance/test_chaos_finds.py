"""Chaos finds something when a guard is taken out, and says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.guards.catalogue import GUARDS
from tests.faults.guards.guard import Guard, copy_to

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

#: In the minute of this one the mail server loses replies four times, for twenty seconds in all.
SEED = 1950

#: What would send again a mail that nobody moves any more; without it such mail is stuck.
RECOVERY = Guard(
    "what a dead sender had in hand is taken up again",
    "P1",
    "pipeline/sql/recover_sending.sql",
    "WHERE state = 'sending'",
    "WHERE false AND state = 'sending'",
    "-",
)


def guard(name: str) -> Guard:
    (found,) = [each for each in GUARDS if each.name == name]
    return found


@pytest.mark.parametrize(
    ("taken_out", "policy", "words"),
    [
        (
            guard("after the dot only a definite reply is an outcome"),
            "resend",
            "a copy that nothing explains",
        ),
        (
            guard("the policy decides about what is uncertain"),
            "hold",
            "sent again although the policy is to hold",
        ),
        (
            guard("only the rows of the delivery are marked as sent"),
            "resend",
            "is marked otherwise than its delivery",
        ),
        (RECOVERY, "resend", "waits for ever in a delivery that is sending"),
    ],
    ids=lambda value: value.path.rpartition("/")[2] if isinstance(value, Guard) else None,
)
def test_chaos_finds_a_guard_that_is_taken_out(
    taken_out: Guard, policy: str, words: str, tmp_path: Path
) -> None:
    """In a copy of the code, whose run ends with status 1 and with the command that repeats it."""
    copy_to(tmp_path)
    path = tmp_path / taken_out.path
    path.write_text(taken_out.mutated(path.read_text()))
    inherited = {name: v for name, v in os.environ.items() if not name.startswith("PIPELINE_")}
    options = (
        "--minutes", "1", "--seed", str(SEED), "--patience", "30s",
        "--on-uncertain", policy, "--report", str(tmp_path / "report"), "--json",
    )  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-m", "pipeline", "chaos", *options],
        cwd=tmp_path,
        env=inherited | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    told = json.loads(ran.stdout)
    assert not told["ok"]
    assert words in "\n".join(told["findings"]), ran.stdout
    assert f"pipeline chaos --minutes 1 --seed {SEED}" in ran.stderr
