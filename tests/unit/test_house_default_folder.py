"""Where the embedded Postgres keeps its data."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.embedded import default_folder


def test_the_folder_that_is_set_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """`PIPELINE_DATA_DIR` wins over everything, and may begin with a tilde."""
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("XDG_DATA_HOME", "/elsewhere")
    monkeypatch.setenv("PIPELINE_DATA_DIR", "~/mail")

    assert default_folder() == Path("/home/somebody/mail")


def test_else_it_lies_in_the_data_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """`XDG_DATA_HOME` is followed if it is absolute, as its specification says."""
    monkeypatch.setenv("HOME", "/somebody")
    monkeypatch.setenv("XDG_DATA_HOME", "/elsewhere")
    assert default_folder() == Path("/elsewhere/dramatiq-email-pipeline")

    monkeypatch.setenv("XDG_DATA_HOME", "not/absolute")
    assert default_folder() == Path("/somebody/.local/share/dramatiq-email-pipeline")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to lend the server an account")
def test_roots_data_does_not_go_into_a_closed_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's account couldn't get at a home of mode 0700."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)

    assert default_folder() == Path("/var/lib/dramatiq-email-pipeline")
