#!/usr/bin/env python3
"""Everything a checkout can do, for a machine that has only Python 3.11 or newer.

python3 dev.py demo [OPTION...]    run the whole pipeline, with a database and an inbox of its own
python3 dev.py test [ARGUMENT...]  all checks and all tests; arguments go to pytest
python3 dev.py quick [ARGUMENT...] the fast tests only
python3 dev.py long [ARGUMENT...]  the tests that take minutes, which `test` leaves out
python3 dev.py bench [FIGURE...]   measure the pipeline, and write docs/performance.md
python3 dev.py check               lint, format, types and the direction of imports
python3 dev.py run COMMAND...      any command inside the environment
python3 dev.py setup               only make the environment

Each makes the environment in .venv first, with uv if that is there, else with venv and pip. It
is made again when requirements.lock, the project's metadata or the Python changes. Packages come
from wherever pip is configured to get them.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 -- the message is for those who run an older one
    sys.exit(
        f"This needs Python 3.11 or newer, and this is {sys.version.split()[0]} ({sys.executable})."
        " If a newer one is installed, name it: python3.12 dev.py ..."
    )

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
LOCK = ROOT / "requirements.lock"
STAMP = VENV / "stamp"
PYTHON = VENV / "bin" / "python"

#: Not the environment's own Python, which may be about to be removed.
BASE_PYTHON = getattr(sys, "_base_executable", None) or sys.executable

#: Settings that say where packages come from, for pip and for uv.
PIP_SOURCES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX", "PIP_FIND_LINKS")
UV_SOURCES = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")

CHECKS = (
    ("ruff", "check"),
    ("ruff", "format", "--check"),
    ("mypy",),
    ("lint-imports", "--no-cache"),
)
#: Tests wait for processes more than they compute: three at once on two cores.
PYTEST = ("pytest", "-n", "3", "--dist", "worksteal")


def main(arguments: list[str]) -> int:
    task, rest = (arguments[0], arguments[1:]) if arguments else ("help", [])
    if task == "setup":
        set_up()
        return 0
    if task == "demo":
        set_up()
        replace_by(["pipeline", "demo", *rest])
    if task == "bench":
        set_up()
        replace_by(["python", "-m", "benchmarks", *rest])
    if task == "run" and rest:
        set_up()
        replace_by(rest)
    if task == "check":
        return run_all(*CHECKS)
    if task == "quick":
        return run_all((*PYTEST, "-m", "not slow and not long", *(rest or ["tests/unit"])))
    if task == "long":
        return run_all(("pytest", "-m", "long", *rest))
    if task == "test":
        return run_all(*CHECKS, (*PYTEST, *rest))
    print(__doc__)
    return 0 if task in {"help", "-h", "--help"} else 2


def run_all(*commands: tuple[str, ...]) -> int:
    """Run every command, whatever becomes of the others, and say at the end which ones failed."""
    set_up()
    failed = []
    for command in commands:
        say("$ " + shlex.join(command))
        done = subprocess.run(in_environment(command), cwd=ROOT, env=environment(), check=False)
        if done.returncode:
            failed.append(command[0])
    if failed:
        say("Failed: " + ", ".join(failed))
    return 1 if failed else 0


def replace_by(command: list[str]) -> NoReturn:
    """Become the command, so that it gets the signals and its status is ours."""
    sys.stdout.flush()
    program, *rest = in_environment(command)
    try:
        os.execvpe(program, [program, *rest], environment())
    except OSError as error:
        sys.exit(f"Can't run {program}: {error.strerror}")


def in_environment(command: "list[str] | tuple[str, ...]") -> list[str]:
    program = VENV / "bin" / command[0]
    return [str(program) if program.exists() else command[0], *command[1:]]


def environment() -> dict[str, str]:
    path = f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    changed = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
    return changed | {"PATH": path, "VIRTUAL_ENV": str(VENV)}


def set_up() -> None:
    """Make the environment unless it is there and up to date."""
    wanted = stamp()
    if is_set_up(wanted):
        return
    if not os.access(ROOT, os.W_OK) or (VENV.exists() and not os.access(VENV, os.W_OK)):
        owner = user_name((VENV if VENV.exists() else ROOT).stat().st_uid)
        sys.exit(
            f"The environment has to be made in {VENV}, where {user_name(os.geteuid())} may not "
            "write. Either clone the repository into a folder of your own, or have its owner, "
            f"{owner}, run: python3 dev.py setup"
        )
    with one_at_a_time():
        if not is_set_up(wanted):
            started = time.monotonic()
            make()
            STAMP.write_text(wanted)
            say(f"The environment is ready, after {time.monotonic() - started:.1f} s.")


def is_set_up(wanted: str) -> bool:
    try:
        return STAMP.read_text() == wanted and os.access(PYTHON, os.X_OK)
    except OSError:
        return False


def stamp() -> str:
    """What an environment depends on; its own place too, which is written into its scripts."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    built_from = [project["build-system"], project["project"], project["tool"]["hatch"]]
    python = [sys.version, str(Path(BASE_PYTHON).resolve())]
    parts = [*python, str(ROOT), LOCK.read_text(), *built_from]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    import fcntl

    with (ROOT / ".venv.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another process is making the environment; waiting for it.")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def make() -> None:
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    if uv := find_uv():
        say(f"Making the environment in {VENV} with uv and {python}.")
        pip = [uv, "pip", "install", "--quiet", "--python", str(PYTHON)]
        if fill([uv, "venv", "--quiet", "--python", BASE_PYTHON, str(VENV)], pip):
            return
        say("uv could not do it; trying pip.")
    check_venv()
    say(f"Making the environment in {VENV} with pip and {python}.")
    pip = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "install", "-qq"]
    if not fill([BASE_PYTHON, "-m", "venv", str(VENV)], pip):
        sys.exit("The environment could not be made; the messages above say why.")


def fill(create: list[str], pip: list[str]) -> bool:
    """Make a new environment and install into it; tell whether that went well."""
    shutil.rmtree(VENV, ignore_errors=True)
    count = len(re.findall(r"^[a-z0-9]", LOCK.read_text(), re.MULTILINE))
    steps = (
        (create, ""),
        (
            [*pip, "--no-deps", "--require-hashes", "-r", str(LOCK)],
            f"Installing up to {count} packages of the versions in {LOCK.name}.",
        ),
        ([*pip, "--no-deps", "--no-build-isolation", "-e", str(ROOT)], ""),
    )
    for command, told in steps:
        if told:
            say(told)
        # A pip that is told to install for the user would refuse to install here.
        done = subprocess.run(command, env=environment() | {"PIP_USER": "0"}, check=False)
        if done.returncode:
            say(f"This step failed: {shlex.join(command)}")
            return False
    return True


def find_uv() -> "str | None":
    """Return uv, unless only pip has been told where packages come from on this machine."""
    chosen = os.environ.get("DEV_INSTALLER", "")
    if chosen == "pip":
        return None
    uv = shutil.which("uv")
    if chosen == "uv" and uv is None:
        sys.exit("DEV_INSTALLER is uv, and there is no uv on the path.")
    if uv is None or chosen == "uv" or any(name in os.environ for name in UV_SOURCES):
        return uv
    config = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    if (config / "uv" / "uv.toml").exists() or Path("/etc/uv/uv.toml").exists():
        return uv
    if any(name in os.environ for name in PIP_SOURCES):
        return None
    files = (
        Path(os.environ.get("PIP_CONFIG_FILE", os.devnull)),
        Path("/etc/pip.conf"),
        Path("/etc/xdg/pip/pip.conf"),
        config / "pip" / "pip.conf",
        Path("~/.pip/pip.conf").expanduser(),
    )
    source = re.compile(r"^\s*(index-url|extra-index-url|find-links|no-index)\b", re.MULTILINE)
    for file in files:
        with contextlib.suppress(OSError):
            if source.search(file.read_text()):
                return None
    return uv


def check_venv() -> None:
    try:
        import ensurepip
        import venv
    except ImportError:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        sys.exit(
            "This Python can't make environments: its venv or ensurepip is missing. On Debian "
            f"and Ubuntu they are in a package of their own: apt install python{version}-venv. "
            "Or put uv on the path, which needs neither."
        )
    del ensurepip, venv


def user_name(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"the user {uid}"


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
