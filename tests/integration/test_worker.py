"""The module that `dramatiq pipeline.worker` loads."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

from dramatiq import Worker

from pipeline import Pipeline
from pipeline.process import make_broker
from tests.support.fleet import ROOT
from tests.support.installation import Installation
from tests.support.smtp_server import Rule, ScriptedServer
from tests.support.waiting import wait_until


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


def test_a_worker_leaves_doorbells_that_it_has_no_thread_for_to_others(
    installation: Installation,
) -> None:
    """Dramatiq would fetch twice as many messages as there are threads, and keep them in memory."""
    with ScriptedServer([Rule("dot", hold="gate", times=2)]) as server:
        installation.set(smtp_url=server.url, senders=8, chunk=1)
        installation.notify_many(20)
        installation.stack()
        assert installation.messages() == 8
        settings = replace(installation.settings, database_url=installation.url)
        broker = make_broker(settings)
        Pipeline(broker, settings)
        worker = Worker(broker, worker_threads=2, worker_timeout=100)
        worker.start()
        try:
            server.wait_until_held("gate", count=2)
            assert (installation.messages("consumed"), installation.messages()) == (2, 6)
            server.release("gate")
            wait_until(lambda: installation.states() == {"sent": 20}, timeout=60)
        finally:
            worker.stop()
            broker.close()
