"""The commands of a checkout, where they can't do what they should, and what they install."""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.support.processes import run_python

ROOT = Path(__file__).resolve().parents[2]
LOCK = (ROOT / "requirements.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

#: Imports a `dev.py`, becomes a user, and makes the environment.
SET_UP_AS_NOBODY = """
import pwd, runpy, sys
from tests.support.processes import become
dev = runpy.run_path(sys.argv[1])
become(int(sys.argv[2]))
dev["set_up"]()
"""


@pytest.fixture
def checkout() -> Iterator[Path]:
    """As much of a checkout as `dev.py` looks at, in a folder that everybody may enter."""
    path = Path(tempfile.mkdtemp(prefix="pipeline-test-"))
    path.chmod(0o755)
    for name in ("dev.py", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, path)
    yield path
    shutil.rmtree(path)


def dev(checkout: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, checkout / "dev.py", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | variables,
    )


def load(checkout: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("dev", checkout / "dev.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_python_without_venv_is_told_what_to_install(checkout: Path) -> None:
    """Debian keeps ensurepip in a package of its own, and the message names that."""
    (checkout / "broken").mkdir()
    (checkout / "broken" / "ensurepip.py").write_text("raise ImportError('not here')")

    done = dev(checkout, "setup", DEV_INSTALLER="pip", PYTHONPATH=str(checkout / "broken"))

    assert done.returncode != 0
    assert f"apt install python3.{sys.version_info.minor}-venv" in done.stderr
    assert not (checkout / ".venv").exists()


def test_an_unwritable_checkout_is_explained(checkout: Path) -> None:
    """An ordinary user in somebody else's checkout is told whose it is and what to do."""
    checkout.chmod(0o555)

    done = run_python(SET_UP_AS_NOBODY, checkout / "dev.py", pwd.getpwnam("nobody").pw_uid)

    assert done.returncode != 0
    assert "clone the repository into a folder of your own" in done.stderr
    checkout.chmod(0o755)
    assert not (checkout / ".venv").exists()


def test_an_unknown_task_is_answered_with_those_that_there_are(checkout: Path) -> None:
    """Nothing is set up for a task that doesn't exist."""
    done = dev(checkout, "tset")

    assert done.returncode == 2
    assert "python3 dev.py test" in done.stdout
    assert not (checkout / ".venv").exists()


def test_the_environment_depends_on_what_is_installed_into_it(checkout: Path) -> None:
    """Another version of a package makes it again; another setting of a linter doesn't."""
    module = load(checkout)
    before = module.stamp()

    project = checkout / "pyproject.toml"
    project.write_text(project.read_text().replace("line-length = 100", "line-length = 99"))
    assert module.stamp() == before

    project.write_text(project.read_text().replace("click>=8.1", "click>=8.2"))
    assert module.stamp() != before


def test_no_registry_is_named() -> None:
    """Packages come from wherever the machine is configured to get them."""
    for name in ("requirements.lock", "pyproject.toml", "dev.py"):
        assert "://" not in (ROOT / name).read_text()


def test_the_locked_versions_are_those_that_the_project_allows() -> None:
    """Whoever changes a range has to lock again; the README says how."""
    locked: dict[str, list[Version]] = {}
    for name, version in re.findall(r"^([a-z0-9.-]+)==([^\s;]+)", LOCK, re.MULTILINE):
        locked.setdefault(name, []).append(Version(version))
    wanted = [
        *PROJECT["project"]["dependencies"],
        *PROJECT["project"]["optional-dependencies"]["demo"],
        *PROJECT["dependency-groups"]["dev"],
        *PROJECT["build-system"]["requires"],
    ]

    for requirement in map(Requirement, wanted):
        versions = locked[canonicalize_name(requirement.name)]
        assert all(version in requirement.specifier for version in versions), requirement


def test_the_readme_and_ci_run_the_same_test_command() -> None:
    """What a person is told to run is what decides."""
    command = "python3 dev.py test"

    assert command in (ROOT / "README.md").read_text()
    assert command in (ROOT / ".ci" / "run").read_text()
