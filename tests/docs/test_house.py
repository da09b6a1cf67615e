"""The house keeps its rules: small folders, imports that run down, no circle, no name twice."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
from bench.measuring.tree import FILES_OF_A_FOLDER, LINES_OF_A_FILE, Tree

ROOT = Path(__file__).parents[2]
PROJECT = """
[tool.hatch.build.targets.wheel]
packages = ["source/shop"]

[[tool.importlinter.contracts]]
type = "layers"
containers = ["shop"]
layers = ["counter", "kitchen | cellar", "words : sums"]
"""
FILES = {
    "counter/__init__.py": '"""Where guests are."""\n',
    "counter/orders.py": "import shop.kitchen.stove\nfrom shop.words import Dish\n",
    "kitchen/__init__.py": "",
    "kitchen/stove.py": '"""Hot."""\nfrom shop import words\n\nclass Plate:\n    """Round."""\n',
    "cellar/__init__.py": "",
    "cellar/shelf.py": "# cool\n\nclass Plate:\n    size = (\n        1,  # cm\n    )\n",
    "words.py": "from shop import sums\n\nclass Dish: pass\n",
    "sums.py": "",
    "__init__.py": "",
}


@pytest.fixture(scope="module")
def house() -> Tree:
    return Tree.read(ROOT)


def shop(root: Path, **changed: str) -> Tree:
    """The tree of a small repository, with lines added to some of its files."""
    (root / "pyproject.toml").write_text(PROJECT)
    for name, text in FILES.items():
        path = root / "source" / "shop" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + changed.get(path.stem, ""))
    return Tree.read(root)


def test_no_folder_is_full(house: Tree) -> None:
    assert house.full_folders == {}
    files = [path for top in ("bench", "tests") for path in (ROOT / top).rglob("*.py")]
    folders = Counter(path.parent for path in files)
    assert {path: num for path, num in folders.items() if num > FILES_OF_A_FOLDER} == {}


def test_no_file_is_long(house: Tree) -> None:
    assert house.long_files == {}
    files = [path for top in ("bench", "tests") for path in (ROOT / top).rglob("*.py")]
    lines = {path: path.read_text().count("\n") for path in files}
    assert {path: num for path, num in lines.items() if num > LINES_OF_A_FILE} == {}


def test_the_commands_of_benches_are_those_of_the_documentation() -> None:
    """But for what a bench starts as a process of its own: `bench/workers`, parts of `device`."""
    pages = [*ROOT.glob("docs/*.md"), *ROOT.glob("*.md"), ROOT / "Makefile"]
    named = {name for page in pages for name in re.findall(r"-m (bench[\w.]*\w)", page.read_text())}
    files = {path.relative_to(ROOT): path for path in (ROOT / "bench").rglob("*.py")}
    commands = {
        ".".join(name.with_suffix("").parts).removesuffix(".__main__")
        for name, path in files.items()
        if name.parts[1] not in ("workers", "device") and "__main__" in path.read_text()
    }
    assert {name for name in named if not name.startswith("bench.workers.")} == commands


def test_no_import_runs_up(house: Tree) -> None:
    assert house.up == []


def test_no_circle(house: Tree) -> None:
    assert house.circles == []
    assert house.circles_of_files == []


def test_one_class_name_has_one_meaning(house: Tree) -> None:
    assert house.repeated_classes == {}


def test_no_key_is_hidden_in_a_scope_of_asgi() -> None:
    """What a request is known by is a parameter or an attribute; the server alone makes scopes."""
    found = []
    for source in sorted(ROOT.glob("*/skerry*/**/*.py")):
        text = source.read_text()
        for node in ast.walk(ast.parse(text)) if "scope[" in text else ():
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                held = node.value
                name = held.id if isinstance(held, ast.Name) else getattr(held, "attr", "")
                if name == "scope":
                    found.append(f"{source.name}: {ast.unparse(node.slice)}")
    assert found == ["exchange.py: 'extensions'"]


def test_nothing_is_wired_after_it_was_made() -> None:
    """A part has its callbacks when it is constructed, and the composition roots assign to no part.

    But for a zone that is served: its contents, bounds and transfers change with what they are
    made from.
    """
    callbacks = set[str]()
    stored = list[tuple[Path, ast.Attribute]]()
    for path in ROOT.glob("*/skerry*/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.ClassDef():
                    callbacks |= callbacks_of(node)
                case ast.Attribute(value=ast.Name("self")):
                    pass
                case ast.Attribute(ctx=ast.Store()):
                    stored.append((path, node))
                case _:
                    pass
    assert {"on_report", "evicting"} <= {name.lstrip("_") for name in callbacks}
    assert [f"{path.name}: {ast.unparse(node)}" for path, node in stored
            if node.attr in callbacks] == []  # fmt: skip
    assert {f"{path.name}: {ast.unparse(node)}" for path, node in stored
            if "composition" in path.parts} == {
        "live_zone.py: contents.places.state",
        "live_zone.py: places.state",
        "live_zone.py: self.responder.limits",
        "live_zone.py: self.server.transfers",
    }  # fmt: skip


def callbacks_of(made: ast.ClassDef) -> set[str]:
    """Names of a class's attributes that are callables: declared so, or given to it as such."""
    found = set[str]()
    for node in ast.walk(made):
        match node:
            case ast.AnnAssign(target=ast.Name(name) | ast.Attribute(attr=name), annotation=kind):
                if "Callable" in ast.unparse(kind):
                    found.add(name)
            case ast.FunctionDef("__init__", arguments):
                given = {
                    each.arg
                    for each in (*arguments.args, *arguments.kwonlyargs)
                    if each.annotation is not None and "Callable" in ast.unparse(each.annotation)
                }
                found |= {
                    target.attr
                    for each in ast.walk(node)
                    if isinstance(each, ast.Assign)
                    and isinstance(each.value, ast.Name)
                    and each.value.id in given
                    for target in each.targets
                    if isinstance(target, ast.Attribute)
                }
            case _:
                pass
    return found


def test_what_is_read_of_a_tree(tmp_path: Path) -> None:
    tree = shop(tmp_path)
    assert tree.rooms == ["shop", "shop.cellar", "shop.counter", "shop.kitchen"]
    assert tree.arrows == [
        ("shop.counter", "shop"),
        ("shop.counter", "shop.kitchen"),
        ("shop.kitchen", "shop"),
    ]
    assert tree.code_lines == {"shop": 2 + 2 + 4 + 2}
    assert tree.repeated_classes == {"Plate": ["shop.cellar.shelf", "shop.kitchen.stove"]}
    assert (tree.up, tree.circles, tree.up_for_types) == ([], [], [])


def test_an_import_that_runs_up_is_found(tmp_path: Path) -> None:
    tree = shop(tmp_path, words="\ndef cook():\n    from shop.kitchen import stove\n")
    assert tree.up == [("shop.words", "shop.kitchen.stove")]
    assert tree.circles == [["shop.kitchen", "shop.words"]]


def test_a_name_is_found_twice_wherever_its_classes_are(tmp_path: Path) -> None:
    tree = shop(tmp_path, sums="def add():\n    class Dish: pass\n")
    assert tree.repeated_classes["Dish"] == ["shop.sums", "shop.words"]


def test_rooms_beside_each_other_do_not_meet(tmp_path: Path) -> None:
    assert shop(tmp_path, shelf="import shop.kitchen.stove\n").up == [
        ("shop.cellar.shelf", "shop.kitchen.stove")
    ]


def test_an_import_for_types_alone_is_none(tmp_path: Path) -> None:
    line = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import shop.counter.orders\n"
    tree = shop(tmp_path, words=line)
    assert (tree.up, tree.circles) == ([], [])
    assert tree.up_for_types == [("shop.words", "shop.counter.orders")]
