"""docs/security.md names tests that are there; and no format of the product carries code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
SOURCES = ("sdk", "edge", "regions", "core", "infra/terraform/provider")
MODULES = {"pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
CALLS = {"eval", "exec", "yaml.load", "yaml.unsafe_load", "torch.load", "numpy.load", "np.load"}


def test_every_test_that_is_named_is_there() -> None:
    named = re.findall(r"`(tests/[\w/.]+)`", PAGE)
    assert len(named) > 20
    assert [each for each in named if not (ROOT / each).exists()] == []


def test_every_rule_has_a_row() -> None:
    numbers = re.findall(r"^\| (\d+)\. .+ \| .+ \|$", PAGE, re.MULTILINE)
    assert [int(number) for number in numbers] == list(range(1, 15))


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


@pytest.mark.parametrize("source", SOURCES)
def test_no_format_carries_code(source: str) -> None:
    found = {
        str(path.relative_to(ROOT)): names
        for path in sorted((ROOT / source).rglob("*.py"))
        if (names := list(carriers(ast.parse(path.read_text()))))
    }
    assert found == {}
