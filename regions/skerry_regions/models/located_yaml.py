"""YAML files checked against a type, with mistakes named by file, line and key.

Only plain data: YAML's safe tags, no duplicate keys, and bounds on size, depth and node count (with
aliases expanded, so that nested anchors cannot explode).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import msgspec
import yaml

from skerry_regions.spec_types import readable

MAX_SIZE = 4 << 20  # bytes
MAX_DEPTH = 32
MAX_NODES = 200_000

_PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")

T = TypeVar("T")


class YamlError(ValueError):
    """A YAML file that cannot be used; the message starts with `file:line: key:`."""


@dataclass(frozen=True, slots=True)
class Located(Generic[T]):
    """A checked value that remembers where in the file each key stood."""

    value: T
    _name: str
    _lines: dict[str, int]

    def error(self, path: str, problem: str) -> YamlError:
        """Return the error of a mistake that types cannot see; `path` is such as
        `pools[1].role`."""
        return YamlError(_located(f"$.{path}", problem, self._name, self._lines))


def load(path: Path, type_: type[T]) -> Located[T]:
    """Read and check one file. Raises `YamlError` (also when it is too large) and `OSError`."""
    with path.open("rb") as file:
        data = file.read(MAX_SIZE + 1)
    return parse(data, str(path), type_)


def load_if_there(path: Path, type_: type[T]) -> Located[T]:
    """Read and check one file; one that is not there counts as an empty one. Raises `YamlError`."""
    try:
        return load(path, type_)
    except FileNotFoundError:
        return parse(b"", str(path), type_)
    except OSError as error:
        raise YamlError(f"{path}: cannot be read: {error.strerror}") from None


def parse(data: bytes, name: str, type_: type[T]) -> Located[T]:
    """Check `data` against a msgspec type; `name` stands for the file in messages.

    An empty document counts as an empty mapping.
    """
    if len(data) > MAX_SIZE:
        raise YamlError(f"{name}: larger than {MAX_SIZE} bytes")
    plain, lines = _read(data, name)
    try:
        return Located(msgspec.convert({} if plain is None else plain, type_), name, lines)
    except msgspec.ValidationError as error:
        problem, _, where = readable(str(error)).partition(" - at `")
        path = where.rstrip("`") or "$"
        if unknown := re.match(r"Object contains unknown field `(.+)`$", problem):
            path, problem = f"{path}.{unknown[1]}", "no such key"
        raise YamlError(_located(path, problem, name, lines)) from None


def _read(data: bytes, name: str) -> tuple[Any, dict[str, int]]:
    """Return the document as plain data, and the line (from 1) of every path such as
    `$.models[0].id`."""
    try:
        loader = yaml.SafeLoader(data)
        root = loader.get_single_node()
        if root is None:
            return None, {"$": 1}
        reader = _LocatedReader(loader, name)
        return reader.plain(root, "$", 0), reader.lines
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise YamlError(f"{name}{line}: not valid YAML: {problem}") from None
    except RecursionError:
        raise YamlError(f"{name}: nested too deeply") from None
    except ValueError as error:
        raise error if isinstance(error, YamlError) else YamlError(f"{name}: {error}") from None


class _LocatedReader:
    def __init__(self, loader: yaml.SafeLoader, name: str) -> None:
        self.lines: dict[str, int] = {}
        self._loader = loader
        self._name = name
        self._nodes = 0

    def plain(self, node: yaml.Node, path: str, depth: int) -> Any:
        line = node.start_mark.line + 1
        self.lines[path] = line
        self._nodes += 1
        if depth > MAX_DEPTH or self._nodes > MAX_NODES:
            raise YamlError(f"{self._name}:{line}: {path[2:]}: nested too deeply or too large")
        if not isinstance(node, yaml.ScalarNode) and node.tag not in _PLAIN_TAGS:
            raise YamlError(f"{self._name}:{line}: {path[2:]}: unknown tag {node.tag}")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode):
            items = cast(list[yaml.Node], node.value)
            return [self.plain(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(items)]
        return self._loader.construct_object(node)

    def _mapping(self, node: yaml.MappingNode, path: str, depth: int) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for key_node, value_node in cast(list[tuple[yaml.Node, yaml.Node]], node.value):
            line = key_node.start_mark.line + 1
            scalar = isinstance(key_node, yaml.ScalarNode)
            key = self._loader.construct_object(key_node) if scalar else None
            if not isinstance(key, str):
                raise YamlError(f"{self._name}:{line}: {path[2:]}: keys must be strings")
            if key in plain:
                raise YamlError(f"{self._name}:{line}: {f'{path}.{key}'[2:]}: given twice")
            plain[key] = self.plain(value_node, f"{path}.{key}", depth + 1)
            self.lines[f"{path}.{key}"] = line
        return plain


def _located(path: str, problem: str, name: str, lines: dict[str, int]) -> str:
    """Return `file:line: path: problem`, with the line of `path` or of its nearest known parent."""
    known = path
    while known not in lines and len(known) > 1:  # values of a dict are `[...]`: take the parent
        known = known[: max(known.rfind("."), known.rfind("["), 1)]
    key = f" {path[2:]}:" if path != "$" else ""
    return f"{name}:{lines.get(known, 1)}:{key} {problem}"
