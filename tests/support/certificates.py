"""A throw-away certificate authority for TLS tests, made with the `openssl` command."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

_EXTENSIONS = "subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth\n"


@dataclass(frozen=True, slots=True)
class Certificate:
    """Paths of PEM files."""

    ca_file: str
    certificate_file: str
    key_file: str


@cache
def server_certificate() -> Certificate:
    """A certificate for localhost and 127.0.0.1 with its authority, one a process.

    Skips the calling test if there is no `openssl` command.
    """
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command is missing")
    folder = Path(tempfile.mkdtemp(prefix="pipeline-tests-tls-"))
    atexit.register(_remove, folder, os.getpid())
    ca_key, ca_file = folder / "ca.key", folder / "ca.pem"
    key_file, request, certificate = folder / "key.pem", folder / "request.pem", folder / "cert.pem"
    extensions = folder / "extensions.cnf"
    extensions.write_text(_EXTENSIONS)
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    _openssl(
        "req", "-x509", *new_key, "-keyout", ca_key, "-out", ca_file, "-days", "2",
        "-subj", "/CN=Test Authority", "-addext", "basicConstraints=critical,CA:TRUE",
        "-addext", "keyUsage=critical,keyCertSign,cRLSign",
    )  # fmt: skip
    _openssl("req", *new_key, "-keyout", key_file, "-out", request, "-subj", "/CN=localhost")
    _openssl(
        "x509", "-req", "-in", request, "-CA", ca_file, "-CAkey", ca_key, "-CAcreateserial",
        "-out", certificate, "-days", "2", "-extfile", extensions,
    )  # fmt: skip
    return Certificate(str(ca_file), str(certificate), str(key_file))


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # and not a fork of it
        shutil.rmtree(folder, ignore_errors=True)


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(
        ["openssl", *map(str, arguments)], check=True, capture_output=True, stdin=subprocess.DEVNULL
    )
