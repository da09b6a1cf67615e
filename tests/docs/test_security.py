"""docs/security.md names tests that are there; and no format of the product carries code."""

from __future__ import annotations

import ast
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
SOURCES = ("sdk", "edge", "regions", "core", "infra/terraform/provider")
MODULES = {"pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
CALLS = {"eval", "exec", "yaml.load", "yaml.unsafe_load", "torch.load", "numpy.load", "np.load"}
NAMES = re.compile(rf"\b(?:{'|'.join(name.split('.')[-1] for name in MODULES | CALLS)})\b")
"""One of which is in all text that `carriers` finds something in."""


def test_every_test_that_is_named_is_there() -> None:
    named = re.findall(r"`(tests/[\w/.]+)`", PAGE)
    assert len(named) > 20
    assert [each for each in named if not (ROOT / each).exists()] == []


def test_every_rule_has_a_row_and_a_test() -> None:
    rows = re.findall(r"^\| (\d+)\. .+ \| (.+) \|$", PAGE, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 15))
    assert [number for number, held_by in rows if "`tests/" not in held_by] == []


def test_every_attack_that_was_found_is_named() -> None:
    files = sorted((ROOT / "tests" / "attacks").glob("test_*.py"))
    assert len(files) >= 6
    assert [file.name for file in files if f"`tests/attacks/{file.name}`" not in PAGE] == []


# --- rule 5: no check is an assertion, which `python -O` leaves out ------------------------------


def is_about_types(test: ast.expr) -> bool:
    """Whether an assertion only says what a type checker is to believe."""
    match test:
        case ast.Compare(ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return True
        case ast.Call(func=ast.Name(id="isinstance")):
            return True
        case _:
            return False


def checks(tree: ast.AST) -> Iterator[str]:
    """Assertions inside functions that decide something."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Assert) and not is_about_types(node.test):
                    yield ast.unparse(node.test)


def test_the_search_for_assertions_finds_them() -> None:
    text = "assert A > B\ndef f(x):\n assert x is not None\n assert isinstance(x, int)\n"
    text += " assert x > 0\n"
    assert list(checks(ast.parse(text))) == ["x > 0"]


@pytest.mark.parametrize("source", SOURCES)
def test_no_check_is_an_assertion(source: str) -> None:
    found = {
        str(path.relative_to(ROOT)): names
        for path in sorted((ROOT / source).rglob("*.py"))
        if "assert " in (text := path.read_text())
        if (names := list(checks(ast.parse(text))))
    }
    assert found == {}


# --- rule 1 --------------------------------------------------------------------------------------


def carriers(tree: ast.AST) -> Iterator[str]:
    """What of a module could run code that came with data."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            yield node.module or ""
        elif isinstance(node, ast.Call) and (name := ast.unparse(node.func)) in CALLS:
            yield name


def test_the_search_finds_what_it_is_for() -> None:
    text = "import pickle\nfrom dill import loads\neval('1')\nyaml.load(x)\nyaml.safe_load(x)\n"
    assert list(carriers(ast.parse(text))) == ["pickle", "dill", "eval", "yaml.load"]
    assert all(NAMES.search(name) for name in MODULES | CALLS)


@pytest.mark.parametrize("source", SOURCES)
def test_no_format_carries_code(source: str) -> None:
    found = {
        str(path.relative_to(ROOT)): names
        for path in sorted((ROOT / source).rglob("*.py"))
        # As Python reads identifiers. A search first, for parsing takes long.
        if NAMES.search(text := unicodedata.normalize("NFKC", path.read_text()))
        if (names := list(carriers(ast.parse(text))))
    }
    assert found == {}
