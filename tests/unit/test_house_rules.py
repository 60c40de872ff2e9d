"""Habits of this repository that no tool knows."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from pipeline.settings import Settings

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


@cache
def texts_in_modules() -> set[str]:
    """All string literals in the package."""
    return {
        node.value
        for module in MODULES
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


@cache
def attributes_in_modules() -> set[str]:
    """What is read as `settings.name` in the package, and in properties of `Settings` itself."""
    config = ROOT / "pipeline" / "settings.py"
    found = set()
    for module in MODULES:
        for node in ast.walk(ast.parse(module.read_text())):
            if module == config and isinstance(node, ast.FunctionDef) and node.decorator_list:
                found |= set(re.findall(r"\bself\.(\w+)", ast.unparse(node)))
        if module != config:
            found |= set(re.findall(r"\bsettings\.(\w+)", module.read_text()))
    return found


@pytest.mark.parametrize("query", QUERIES, ids=named)
def test_C13_every_query_is_loaded(query: Path) -> None:
    """A file of SQL whose name stands in no module is one that nobody runs."""
    assert texts_in_modules() & {query.stem, query.name}


@pytest.mark.parametrize("setting", [setting.name for setting in fields(Settings)])
def test_C13_every_setting_is_read(setting: str) -> None:
    """A setting that nothing reads promises what it doesn't do. Checking it is not reading it."""
    assert setting in attributes_in_modules()
