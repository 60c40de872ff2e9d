"""What runs in a page of documentation.

A fenced block runs by the language it names:

    python            in one namespace for the whole page, with `url`, `server` and `wait_until`
    python file=x.py  is written to the page's folder instead, and can be imported
    sh                in a shell, in the page's folder; each block begins with the same environment
    sh service        each line is a process, which runs to the end of the page and must then stop
                      with status 0 when it is told to
    sql               in psql, on the page's database
    toml              is read as a file of settings
    ini               is read as a systemd unit
    text map          names files and folders of this repository, each with what it is for

Any other block is an error: nothing is passed over. What readers need not see, such as rows to look
at, or a check of what came of it, stands in a comment: `<!-- python`, lines, `-->`.

A page is read in a process of its own, since its Python may set Dramatiq's global broker and such:
`python -m tests.docs.pages PAGE SCRATCH URL`.
"""

from __future__ import annotations

import configparser
import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import Settings
from tests.support.shell import ROOT, Terminal
from tests.support.smtp_server import ScriptedServer
from tests.support.waiting import wait_until

#: A line that begins a block, as readers see it or in a comment, and its end.
_BEGIN = re.compile(r"(?P<mark>```|<!-- )(?P<kind>[a-z].*?)\s*")
_END = {"```": "```", "<!-- ": "-->"}

KINDS = {"python", "sh", "sh service", "sql", "toml", "ini", "text map"}


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of a page that runs.

    Attributes:
      line: Of its first line of code, from 1.
      kind: The language, and what follows it.
    """

    line: int
    kind: str
    code: str


class PageError(AssertionError):
    """A page can't be read as one."""


def blocks(text: str) -> Iterator[Block]:
    """The blocks of a page in their order.

    Raises:
      PageError: For a block that names no language, or never ends.
    """
    lines = iter(enumerate(text.splitlines(), start=1))
    for number, line in lines:
        if line.lstrip().startswith("```") and not _BEGIN.fullmatch(line):
            raise PageError(f"line {number}: a block that names no language: {line!r}")
        begin = _BEGIN.fullmatch(line)
        if begin is None or (begin["mark"] != "```" and begin["kind"].endswith("-->")):
            continue
        code = []
        for _, inner in lines:
            if inner == _END[begin["mark"]]:
                break
            code.append(inner)
        else:
            raise PageError(f"line {number}: a block without an end")
        yield Block(number + 1, begin["kind"], "\n".join(code) + "\n")


class Reader:
    """Does what a page says, block after block.

    Parameters:
      page: The file, which errors name.
      terminal: In the folder in which the page is read.
      url: The page's database.
      server: The mail server that the settings name.
    """

    def __init__(self, page: Path, terminal: Terminal, url: str, server: ScriptedServer) -> None:
        self.page = page
        self.terminal = terminal
        self.services: list[Any] = []
        self.namespace: dict[str, Any] = {
            "__name__": "page",
            "url": url,
            "server": server,
            "terminal": terminal,
            "wait_until": wait_until,
        }

    def run(self) -> None:
        """Run all of it.

        Raises:
          AssertionError: With the page and the line, for what went wrong in a shell or in psql.
        """
        for block in blocks(self.page.read_text(encoding="utf-8")):
            try:
                self._run(block)
            except Exception as error:
                error.add_note(f"in {self.page.name}, the block at line {block.line}")
                raise
        for service in self.services:
            assert self.terminal.stop(service) == 0, self.terminal.output()

    def _run(self, block: Block) -> None:
        kind, _, name = block.kind.partition(" file=")
        if kind not in KINDS:
            raise PageError(f"nobody knows how to run a block of kind {block.kind!r}")
        if name:
            path = self.terminal.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.code, encoding="utf-8")
        elif kind == "python":
            # So many empty lines that a traceback shows the page's own.
            code = "\n" * (block.line - 1) + block.code
            exec(compile(code, str(self.page), "exec"), self.namespace)
        elif kind == "sh":
            self.terminal.run(_with_settings_checked(block.code))
        elif kind == "sh service":
            commands = [line for line in block.code.splitlines() if line.strip(" #")]
            self.services += [self.terminal.start(command) for command in commands]
        elif kind == "sql":
            script = self.terminal.scratch / "block.sql"
            script.write_text(block.code, encoding="utf-8")
            database = '"$PIPELINE_DATABASE_URL"'
            self.terminal.run(
                f"psql -q -v ON_ERROR_STOP=1 -d {database} -f {shlex.quote(str(script))}"
            )
        elif kind == "toml":
            path = self.terminal.scratch / "settings.toml"
            path.write_text(block.code, encoding="utf-8")
            Settings.load({"PIPELINE_SETTINGS_FILE": str(path)})
        elif kind == "ini":
            self._check_unit(block.code)
        else:
            check_map(block.code)

    def _check_unit(self, text: str) -> None:
        """A unit that systemd could read, whose command exists with these options."""
        unit = configparser.ConfigParser(strict=False, interpolation=None)
        unit.optionxform = str  # type: ignore[assignment, method-assign]
        unit.read_string(text)
        service = unit["Service"]
        assert service["KillMode"] == "mixed"
        program, *arguments = shlex.split(service["ExecStart"])
        assert Path(program).is_absolute()
        self.terminal.run(shlex.join([Path(program).name, *arguments, "--help"]))


def _with_settings_checked(code: str) -> str:
    """A block that exports settings must export good ones."""
    if not re.search(r"^export PIPELINE_", code, re.MULTILINE):
        return code
    return f"{code}\npython -c 'import pipeline; pipeline.Settings.load()'\n"


def check_map(text: str) -> None:
    """Every line is `path  what it is for`; the path is there, indented below its folder.

    Raises:
      AssertionError: For a path that is not there.
    """
    folders: list[str] = []
    for line in text.splitlines():
        indentation, name, about = re.fullmatch(r"( *)(\S+)(.*)", line).groups()  # type: ignore[union-attr]
        depth = len(indentation) // 4
        folders[depth:] = [name]
        path = ROOT.joinpath(*folders)
        assert path.exists(), f"{path} is on the map and nowhere else"
        assert about.startswith("  "), f"{line!r} says nothing"


#: What a page's commands are told, beside where the database and the mail server are.
SETTINGS = {
    "PIPELINE_MAIL_FROM": "Shop <shop@shop.example>",
    "PIPELINE_STACK_EVERY": "1s",
    "PIPELINE_RECOVER_EVERY": "500ms",
}


def main(page: Path, scratch: Path, url: str) -> None:
    """Read a page in an empty folder, on an empty database, with a mail server of its own."""
    folder = scratch / "folder"
    folder.mkdir()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    with ScriptedServer() as server:
        settings = {
            "PIPELINE_DATABASE_URL": url,
            "PIPELINE_SMTP_URL": server.url,
            **SETTINGS,
        }
        os.environ.update(settings)
        with Terminal(scratch, folder, settings) as terminal:
            Reader(page, terminal, url, server).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
