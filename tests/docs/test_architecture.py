"""docs/architecture.md has a line for every room, and it and docs/request.md name what is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT / name for name in ("sdk", "edge", "regions", "core", "infra/terraform/provider")]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
REQUEST = (ROOT / "docs" / "request.md").read_text()
SECTION = re.compile(r"^### `([\w/]+)`.*?(?=^##)", re.DOTALL | re.MULTILINE)
NAME = re.compile(r"`([\w/]+(?:\.(?:py|yaml)|/))`")
STEP = re.compile(r"`([\w/]+\.py)(?:: ([\w.]+))?`")
ROOM = re.compile(r"^\| `([\w/]+)` \| (.+) \|$", re.MULTILINE)


def named_files() -> list[str]:
    return [
        f"{section[1]}/{name}"
        for section in SECTION.finditer(PAGE)
        for row in re.findall(r"^\| (`.*?) \|", section[0], re.MULTILINE)
        for name in NAME.findall(row)
    ]


def named_rooms() -> dict[str, str]:
    """Rooms by path below their source root, with what the page says that they are for."""
    rooms = PAGE[PAGE.index("\n## The rooms\n") : PAGE.index("\n## The parts\n")]
    return dict(ROOM.findall(rooms))


def purpose(init: Path) -> str:
    """The first sentence of a room's `__init__`."""
    text = ast.get_docstring(ast.parse(init.read_text())) or ""
    return re.split(r"\.(?:\s|$)", text.replace("\n", " "), maxsplit=1)[0]


def definitions(node: ast.AST, prefix: str = "") -> Iterator[str]:
    """Qualified names of classes, methods and functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name
            if isinstance(child, ast.ClassDef):
                yield from definitions(child, f"{prefix}{child.name}.")


def parsed(file: str) -> ast.Module:
    """A file that is named below its source root."""
    [path] = [source / file for source in SOURCES if (source / file).exists()]
    return ast.parse(path.read_text())


def test_all_parts_are_described() -> None:
    parts = {"sdk", "core", "regions", "edge", "infra"}
    assert {name.partition("/")[0] for name in named_files()} == parts


@pytest.mark.parametrize("name", named_files())
def test_a_named_file_exists(name: str) -> None:
    assert (ROOT / name).exists()


def test_every_room_has_its_line_and_every_line_its_room() -> None:
    there = {
        str(init.parent.relative_to(source)): purpose(init)
        for source in SOURCES
        for init in source.rglob("__init__.py")
    }
    assert named_rooms() == there


def test_every_file_lies_in_a_room() -> None:
    rooms = named_rooms()
    files = [path.relative_to(source) for source in SOURCES for path in source.rglob("*.py")]
    assert [str(path) for path in files if str(path.parent) not in rooms] == []


@pytest.mark.parametrize(("file", "name"), STEP.findall(REQUEST))
def test_a_step_of_a_request_is_there(file: str, name: str) -> None:
    assert not name or name in set(definitions(parsed(file)))


def test_a_request_has_at_most_nine_shapes_and_each_is_there() -> None:
    table = REQUEST[REQUEST.index("\n## Its nine shapes\n") : REQUEST.index("\n## The caller\n")]
    rows = re.findall(r"^\| (.+?) \| (.+?) \| .+ \|$", table, re.MULTILINE)
    assert rows[0] == ("shape", "defined in")
    assert len(rows[1:]) <= 9
    for shape, file in rows[1:]:
        assert file == "none" or shape.strip("`") in set(definitions(parsed(file.strip("`"))))


def test_a_request_is_followed_through_all_packages_that_it_enters() -> None:
    packages = {file.partition("/")[0] for file, _ in STEP.findall(REQUEST)}
    assert packages == {"skerry", "skerry_edge", "skerry_regions", "skerry_core"}
