"""The module that `dramatiq pipeline.worker` loads."""

from __future__ import annotations

import subprocess
import sys

from tests.support.fleet import ROOT


def test_a_database_without_the_schema_ends_the_worker_with_a_word_on_what_to_do(
    empty_database_url: str,
) -> None:
    """It doesn't go on logging the same error for ever."""
    done = subprocess.run(
        [sys.executable, "-m", "dramatiq", "pipeline.worker", "--processes", "1", "--threads", "1"],
        env={"PYTHONPATH": str(ROOT), "PIPELINE_DATABASE_URL": empty_database_url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "run `pipeline init`" in done.stdout + done.stderr
