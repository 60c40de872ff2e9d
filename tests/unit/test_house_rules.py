"""Habits of this repository that no tool knows."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "pipeline").rglob("*.py"))
QUERIES = sorted((ROOT / "pipeline").rglob("*.sql"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("module", MODULES, ids=named)
def test_modules_stay_small(module: Path) -> None:
    """A module of more than 400 lines is two."""
    assert len(module.read_text().splitlines()) <= 400


@pytest.mark.parametrize("module", [path for path in MODULES if path.stat().st_size], ids=named)
def test_modules_say_what_they_are(module: Path) -> None:
    """Every module begins with a docstring."""
    assert ast.get_docstring(ast.parse(module.read_text()))


@pytest.mark.parametrize("query", QUERIES, ids=named)
def test_queries_say_what_they_promise(query: Path) -> None:
    """Every SQL file begins with a comment."""
    assert query.read_text().startswith("--")


@pytest.mark.parametrize("module", TESTS, ids=named)
def test_tests_say_what_they_show(module: Path) -> None:
    """Every test has a docstring that states the behaviour."""
    functions = [
        node
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    ]

    assert [function.name for function in functions if not ast.get_docstring(function)] == []
