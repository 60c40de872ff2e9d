"""The package as it is installed elsewhere, where there is no checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what a wheel of this checkout installs."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(folder / "installed")
    return folder / "installed"


def test_everything_that_is_read_at_run_time_is_in_the_wheel(installed: Path) -> None:
    """The schema, the queries, the templates and the marker of a typed package are shipped."""
    package = ROOT / "pipeline"
    data = {
        path.relative_to(package)
        for path in package.rglob("*")
        if path.is_file() and path.suffix not in {".py", ".pyc"}
    }

    shipped = installed / "pipeline"
    assert [path for path in data if not (shipped / path).is_file()] == []
    assert (shipped / "schema.sql").read_text() == (ROOT / "schema.sql").read_text()


def test_nothing_else_is_in_the_wheel(installed: Path) -> None:
    """Neither the tests nor the checkout's own scripts are installed into other environments."""
    assert [entry.name for entry in installed.iterdir() if entry.suffix != ".dist-info"] == [
        "pipeline"
    ]


def test_an_installed_package_needs_no_checkout(installed: Path, empty_database_url: str) -> None:
    """What `pipeline init` does works from the wheel's own files alone."""
    code = """
import sys
from pathlib import Path
import pipeline
from pipeline import database
assert Path(pipeline.__file__).is_relative_to(sys.argv[1]), pipeline.__file__
connection = database.connect(sys.argv[2])
database.init(connection)
connection.commit()
cursor = connection.cursor()
cursor.execute("SELECT count(*) FROM pipeline.email_notification_log")
print(cursor.fetchone())
"""
    done = subprocess.run(
        [sys.executable, "-c", code, installed, empty_database_url],
        cwd=installed.parent,
        env=os.environ | {"PYTHONPATH": str(installed)},
        check=False,
        timeout=120,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "(0,)\n"), done.stderr
