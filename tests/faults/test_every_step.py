"""A covering part of the step walk; `python -m tests.faults.walk` goes all of it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest

from tests.faults.walk.children import Zygote
from tests.faults.walk.operations import OPERATIONS
from tests.faults.walk.points import FAULTS
from tests.faults.walk.walker import Walker
from tests.support.smtp_server import ScriptedServer

#: Of so many points one is visited here. Each operation and fault begins at another one.
STRIDES = {"kill": 11, "freeze": 29, "cut": 17}
STRIDE_OF_ERRORS = 31


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    with Zygote(tmp_path_factory.mktemp("walk") / "children.log") as running:
        yield running


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


def walked(walker: Walker, operation: str, policy: str) -> tuple[int, list[str]]:
    """Walk with every fault: how many calls were broken, and all that went wrong."""
    wrong: list[str] = []
    visited = 0
    for fault in FAULTS:
        stride = STRIDES.get(fault, STRIDE_OF_ERRORS)
        offset = zlib.crc32(f"{operation} {policy} {fault}".encode()) % stride
        done = walker.walk(operation, fault, policy, stride=stride, offset=offset)
        visited += done.visited
        wrong += done.wrong
    return visited, wrong


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operation", "policy"),
    [
        (name, policy)
        for name, operation in OPERATIONS.items()
        for policy in operation.policies
        if name != "init"
    ],
)
def test_broken_at_a_call_nothing_is_lost_and_nothing_doubled(
    database_url: str, server: ScriptedServer, zygote: Zygote, operation: str, policy: str
) -> None:
    """Killed, frozen, cut off or refused before or after it: the ledger is right in the end."""
    visited, wrong = walked(Walker(database_url, server, zygote), operation, policy)
    assert visited
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_broken_at_a_call_initialising_can_be_done_again(
    empty_database_url: str, server: ScriptedServer, zygote: Zygote
) -> None:
    """`init` is whole or absent at any point, and a second one completes it."""
    visited, wrong = walked(Walker(empty_database_url, server, zygote), "init", "resend")
    assert visited
    assert not wrong, "\n".join(wrong)
