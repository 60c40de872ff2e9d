"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from pipeline.database import connect

PACKAGES = ("dramatiq", "dramatiq-pg", "psycopg2-binary", "jinja2", "nh3", "apscheduler")

#: Settings of Postgres that matter here, as they were.
SETTINGS = (
    "server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers",
    "wal_sync_method", "max_wal_size", "checkpoint_timeout", "max_connections", "autovacuum",
)  # fmt: skip


def described(bench: Bench) -> dict[str, Any]:
    """Machine, versions, settings."""
    connection = connect(bench.server.dsn("postgres"))
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT name, current_setting(name) FROM unnest(%s) AS name", (list(SETTINGS),)
        )
        postgres = dict(cursor.fetchall())
    connection.close()
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gigabytes": round(
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1
        ),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load_before": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "postgres": postgres,
        "commit": _commit(),
        "scale": bench.scale,
        "repeat": bench.repeat,
        "most_rows": bench.most_rows,
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _commit() -> str:
    told = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return told.stdout.strip() or "unknown"
