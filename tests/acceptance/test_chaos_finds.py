"""Chaos on code that lacks a guard says what is broken, and how to see it again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.guards.catalogue import GUARDS
from tests.faults.guards.guard import copy_to
from tests.support.commands import environment

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

#: Guards, and what their lack leads to within a minute of chaos.
TAKEN_OUT = {
    "after the dot only a definite reply is an outcome": "a copy that nothing explains",
    "what was sent to the dot is uncertain, not queued": "a copy that nothing explains",
    "the policy decides about what is uncertain": "sent again although the policy is to hold",
    "only the rows of the delivery are marked as sent": "is marked otherwise than its delivery",
}


@pytest.mark.parametrize("name", TAKEN_OUT)
def test_chaos_misses_a_guard_that_is_taken_out(name: str, tmp_path: Path) -> None:
    """It exits with 1, tells of the broken promise, and names the seed."""
    (guard,) = [each for each in GUARDS if each.name == name]
    copy_to(tmp_path)
    path = tmp_path / guard.path
    path.write_text(guard.mutated(path.read_text()))
    policy = "hold" if "hold" in TAKEN_OUT[name] else "resend"
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "pipeline", "chaos", "--json", "--minutes", "1"),
            *("--seed", "4", "--faults", "3", "--patience", "2m", "--on-uncertain", policy),
        ],
        cwd=tmp_path,
        env=environment() | {"PYTHONPATH": os.fspath(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert TAKEN_OUT[name] in "\n".join(json.loads(ran.stdout)["findings"])
    assert "--seed 4" in ran.stderr
