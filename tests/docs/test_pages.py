"""The pages of documentation: their examples run, and their links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.states import STATES
from tests.docs import settings_table
from tests.docs.pages import KINDS, PageError, blocks
from tests.support.shell import ROOT

#: The pages whose examples run here.
PAGES = sorted(
    ROOT / "docs" / name
    for name in ("README.md", "developing.md", "embedding.md", "operating.md", "proof.md")
)

#: Pages with tests of their own, which name them.
ELSEWHERE = {
    "broker.md", "capacity.md", "chaos.md", "commands.md", "guards.md", "model.md",
    "performance.md",
}  # fmt: skip

ALL = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

#: A block or a comment, with all its lines.
BLOCK = re.compile(r"^(?:```.*?^```|<!-- [^\n]*$.*?^-->)$", re.MULTILINE | re.DOTALL)


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_examples_run(page: Path, tmp_path: Path, empty_database_url: str) -> None:
    """From the first block of the page to its last, on a new database."""
    command = [sys.executable, "-m", "tests.docs.pages", str(page), str(tmp_path)]
    done = subprocess.run(
        [*command, empty_database_url],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_no_page_is_left_out() -> None:
    """A page runs here, or a test elsewhere names it."""
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert {path.name for path in PAGES} | (pages & ELSEWHERE) == pages
    sources = [
        path.read_text() for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__)
    ]
    for name in pages & ELSEWHERE:
        assert any(name in source for source in sources), f"no test reads docs/{name}"


@pytest.mark.parametrize("page", ALL, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    """Every link within the repository names a file, and a heading if it has a #."""
    text = re.sub(BLOCK, "", page.read_text())
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, heading = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{link} leads nowhere"
        if heading:
            assert heading in headings(target), f"{link} names no heading"


def headings(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    found = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in found}


@pytest.mark.parametrize("page", [page for page in ALL if page.name not in ELSEWHERE], ids=named)
def test_pages_can_be_read(page: Path) -> None:
    """One heading at the top, every block is of a kind that runs, and no code hides in a margin."""
    text = page.read_text()
    assert text.startswith("# ")
    assert not re.search(r"^(?: {4}|\t)", re.sub(BLOCK, "", text), re.MULTILINE)
    for block in blocks(text):
        assert block.kind.partition(" file=")[0] in KINDS


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("```\nls\n```\n", "names no language"),
        ("   ```sh\n   ls\n   ```\n", "names no language"),
        ("```sh\nls\n", "without an end"),
    ],
)
def test_a_block_that_can_not_run_is_an_error(text: str, told: str) -> None:
    """Nothing is passed over because it was written oddly."""
    with pytest.raises(PageError, match=told):
        list(blocks(text))


def test_the_table_of_settings_is_that_of_the_settings() -> None:
    """Every setting is in it, with its default and its own description."""
    assert settings_table.PAGE.read_text() == settings_table.page_with_table(), (
        "write it with: python -m tests.docs.settings_table --write"
    )


def test_the_table_of_states_has_them_all() -> None:
    """An operator finds every state that a delivery may be in."""
    _, _, section = _text("operating.md").partition("\n## States\n")
    rows = re.findall(r"^\| `(\w+)` \|", section.partition("\n## ")[0], re.MULTILINE)
    assert tuple(rows) == STATES


def test_the_map_has_every_module() -> None:
    """Whoever looks for the room for a change finds all of them on the map."""
    (code,) = [b.code for b in blocks(_text("developing.md")) if "map" in b.kind]
    mapped = set(re.findall(r"^    (\S+)  ", code, re.MULTILINE))
    there = {
        path.name
        for path in (ROOT / "pipeline").iterdir()
        if path.name[0] not in "_." and path.name != "py.typed"
    }
    assert there - mapped == set()


def test_commands_of_a_checkout_are_those_of_dev_py() -> None:
    """What developing.md says of them, dev.py knows."""
    told = set(re.findall(r"^\| `python3 dev\.py (\w+)", _text("developing.md"), re.MULTILINE))
    known = subprocess.run(
        [sys.executable, "dev.py"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout
    assert told
    assert told <= set(re.findall(r"^python3 dev\.py (\w+)", known, re.MULTILINE))


def _text(name: str) -> str:
    return (ROOT / "docs" / name).read_text()
