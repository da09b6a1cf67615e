"""What a source tree is like: its rooms, the arrows between them, its lines. Read by its syntax.

A room is a folder of modules. An arrow goes from the room of a module to that of another which it
imports, within functions too, but not for types alone (`if TYPE_CHECKING:`). An arrow runs up when
the layers in `[tool.importlinter]` do not allow it. The `__init__` of a package is a room of its
own where the package has rooms: it is the door, and may know what is behind it.
"""

from __future__ import annotations

import ast
import io
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

LINES_OF_A_FILE = 300
FILES_OF_A_FOLDER = 20
NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Module:
    """One file of the product."""

    name: str  # dotted; of a package's `__init__` the package's
    path: str  # below the repository
    is_package: bool
    text: str
    has_code: bool  # beside comments and docstrings
    classes: tuple[str, ...]  # those within functions and other classes, too
    imports: frozenset[str]  # dotted names, of modules or of what is in them
    type_imports: frozenset[str]  # those for types alone


@dataclass(frozen=True, slots=True)
class Layers:
    """A contract of import-linter: groups of siblings, the highest first."""

    groups: tuple[tuple[frozenset[str], bool], ...]  # full names; whether siblings may meet

    def place(self, module: str) -> tuple[int, str] | None:
        for number, (names, _) in enumerate(self.groups):
            for name in names:
                if module == name or module.startswith(f"{name}."):
                    return number, name
        return None

    def allow(self, importer: str, imported: str) -> bool:
        here, there = self.place(importer), self.place(imported)
        if here is None or there is None or here[1] == there[1]:
            return True
        return here[0] < there[0] or (here[0] == there[0] and self.groups[here[0]][1])


@dataclass(frozen=True)
class Tree:
    """All modules of the packages that a repository ships."""

    modules: Mapping[str, Module]
    layers: tuple[Layers, ...]
    folders: Mapping[str, int] = field(default_factory=dict[str, int])  # Python files in each

    @classmethod
    def read(cls, root: Path) -> Tree:
        """Of the repository at `root`; its `pyproject.toml` says which packages it ships."""
        project = tomllib.loads((root / "pyproject.toml").read_text())
        packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
        modules, folders = {}, Counter[str]()
        for package in packages:
            source = (root / package).parent
            for path in sorted((root / package).rglob("*.py")):
                module = read_module(path, source, root)
                modules[module.name] = module
                folders[str(path.parent.relative_to(root))] += 1
        contracts = project["tool"].get("importlinter", {}).get("contracts", [])
        layers = [each for contract in contracts for each in layers_of(contract)]
        return cls(modules, tuple(layers), dict(folders))

    # --- rooms and arrows ------------------------------------------------------------------------

    def room(self, name: str) -> str:
        """The room that a module is in."""
        if not self.modules[name].is_package:
            return name.rpartition(".")[0]
        return f"{name}.__init__" if name in self._packages_with_rooms else name

    @cached_property
    def rooms(self) -> list[str]:
        """Folders that hold more than an empty `__init__`, one that says what they are for."""
        return sorted({self.room(each.name) for each in self.modules.values() if each.has_code})

    @cached_property
    def imports(self) -> list[tuple[str, str]]:
        """Pairs of modules, of which the first imports the second when it runs."""
        return sorted(set(self._pairs("imports")))

    @cached_property
    def arrows(self) -> list[tuple[str, str]]:
        """Pairs of rooms."""
        pairs = {(self.room(one), self.room(other)) for one, other in self.imports}
        return sorted((one, other) for one, other in pairs if one != other)

    @cached_property
    def up(self) -> list[tuple[str, str]]:
        """Imports that run up, as pairs of modules."""
        return [pair for pair in self.imports if not self._is_allowed(*pair)]

    @cached_property
    def up_for_types(self) -> list[tuple[str, str]]:
        """The same of imports for types alone."""
        pairs = set(self._pairs("type_imports"))
        return sorted(pair for pair in pairs if not self._is_allowed(*pair))

    @cached_property
    def circles(self) -> list[list[str]]:
        """Rooms that reach each other; of a folder with rooms in it, each file by itself."""
        arrows = {(self._floor(one), self._floor(other)) for one, other in self.imports}
        return circles(sorted((one, other) for one, other in arrows if one != other))

    @cached_property
    def circles_of_files(self) -> list[list[str]]:
        """Modules that reach each other."""
        return circles(self.imports)

    # --- sizes and names -------------------------------------------------------------------------

    @cached_property
    def full_folders(self) -> dict[str, int]:
        return {name: num for name, num in self.folders.items() if num > FILES_OF_A_FOLDER}

    @cached_property
    def long_files(self) -> dict[str, int]:
        """Lines, of files with more than 300."""
        return {
            each.path: num
            for each in self.modules.values()
            if (num := each.text.count("\n")) > LINES_OF_A_FILE
        }

    @cached_property
    def repeated_classes(self) -> dict[str, list[str]]:
        """Modules, by the name of a class that is defined more than once."""
        found = defaultdict[str, list[str]](list)
        for module in self.modules.values():
            for name in module.classes:
                found[name].append(module.name)
        return {name: places for name, places in sorted(found.items()) if len(places) > 1}

    @cached_property
    def code_lines(self) -> dict[str, int]:
        """By package."""
        found = Counter[str]()
        for module in self.modules.values():
            found[module.name.partition(".")[0]] += len(code_lines(module.text))
        return dict(sorted(found.items()))

    # ---------------------------------------------------------------------------------------------

    @cached_property
    def _packages_with_rooms(self) -> frozenset[str]:
        packages = {each.name for each in self.modules.values() if each.is_package}
        return frozenset(
            each.rpartition(".")[0] for each in packages if each.rpartition(".")[0] in packages
        )

    def _floor(self, name: str) -> str:
        room = self.room(name)
        return name if room in self._packages_with_rooms else room

    def _pairs(self, attribute: str) -> Iterator[tuple[str, str]]:
        for module in self.modules.values():
            for name in getattr(module, attribute):
                imported = self._module_of(name)
                if imported is not None and imported != module.name:
                    yield module.name, imported

    def _module_of(self, name: str) -> str | None:
        """The module of a name that is one, or is in one."""
        if name in self.modules:
            return name
        parent = name.rpartition(".")[0]
        return parent if parent in self.modules else None

    def _is_allowed(self, importer: str, imported: str) -> bool:
        return all(layers.allow(importer, imported) for layers in self.layers)


def read_module(path: Path, source: Path, root: Path) -> Module:
    """A module below the source root `source`."""
    text = path.read_text()
    tree = ast.parse(text)
    parts = path.relative_to(source).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    for_types = [
        each
        for node in statements(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for each in node.body
    ]
    return Module(
        name=".".join(parts[:-1] if is_package else parts),
        path=str(path.relative_to(root)),
        is_package=is_package,
        text=text,
        has_code=len(tree.body) > (ast.get_docstring(tree, clean=False) is not None),
        classes=tuple(node.name for node in statements(tree) if isinstance(node, ast.ClassDef)),
        imports=frozenset(imported_names(statements(tree, skipped=for_types))),
        type_imports=frozenset(imported_names(for_types)),
    )


def statements(node: ast.AST, skipped: Sequence[ast.AST] = ()) -> Iterator[ast.AST]:
    """What is below a piece of syntax but for expressions, and for what is in `skipped`."""
    for blocks in ("body", "handlers", "cases", "orelse", "finalbody"):
        for child in getattr(node, blocks, ()):
            if child not in skipped:
                yield child
                yield from statements(child, skipped)


def imported_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Of `from a import b` it is `a.b`."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def code_lines(text: str) -> set[int]:
    """Numbers of the lines that are neither blank nor comment nor docstring: some 10 ms."""
    lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in statements(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
            lines.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return lines


def layers_of(contract: Mapping[str, Any]) -> Iterator[Layers]:
    """Of each container of a contract, if it is one of layers."""
    if contract["type"] != "layers":
        return
    for container in contract.get("containers", [""]):
        prefix = f"{container}." if container else ""
        groups = []
        for line in contract["layers"]:
            names = frozenset(prefix + each.strip() for each in line.replace(":", "|").split("|"))
            groups.append((names, ":" in line))
        yield Layers(tuple(groups))


def circles(arrows: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Strongly connected components of more than one node: what reaches each other both ways.

    By Kosaraju and Sharir: nodes in the order in which a search leaves them, then a search
    backwards from the last.
    """
    ahead, behind = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for one, other in arrows:
        ahead[one].append(other)
        behind[other].append(one)
    left = list[str]()
    seen = set[str]()
    for node in list(ahead):
        left += _reached(node, ahead, seen)
    seen.clear()
    found = [_reached(node, behind, seen) for node in reversed(left)]
    return sorted(sorted(each) for each in found if len(each) > 1)


def _reached(start: str, arrows: Mapping[str, list[str]], seen: set[str]) -> list[str]:
    """What can be reached and was not `seen`, each node after all that it alone leads to."""
    if start in seen:
        return []
    seen.add(start)
    left, path = list[str](), [(start, iter(arrows.get(start, ())))]
    while path:
        node, rest = path[-1]
        ahead = next((each for each in rest if each not in seen), None)
        if ahead is None:
            left.append(node)
            path.pop()
        else:
            seen.add(ahead)
            path.append((ahead, iter(arrows.get(ahead, ()))))
    return left
