"""Tests that at most one branch of a schema's `oneOf` can match: it is then `anyOf`.

Branches are distinguished by their types, by the constants that they list, or by a property that
each of them requires and whose constants differ. Constants are looked up by hash, so the work grows
with the schema and not with the pairs of its branches.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

Schema = dict[str, Any]
Constant = tuple[str, Hashable]  # its kind, and what distinguishes it from others of the kind
Constants = frozenset[Constant]

TYPES: Final = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))
MAX_BY_PAIRS: Final = 16  # branches that no property of all distinguishes are compared one by one


class BranchOverlap(Exception):
    """A branch may match what an earlier one matches."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class Branches:
    """Distinguishes the branches of one schema's `oneOf`s. `resolve` follows references."""

    def __init__(self, resolve: Callable[[object], Schema]) -> None:
        self._resolve = resolve
        self._listed: dict[int, Constants | None] = {}  # by id of a schema, which lives longer

    def check(self, branches: Sequence[object]) -> None:
        """Raise `BranchOverlap` for the first branch that is not distinguished from those
        before."""
        found = [self._resolve(branch) for branch in branches]
        kinds = [self._kinds(branch) for branch in found]
        together = [
            index
            for kind in sorted(TYPES - {"integer"})
            if (index := self._overlap_in(kind, found, kinds)) is not None
        ]
        if together:
            raise BranchOverlap(min(together))

    def _overlap_in(
        self, kind: str, branches: Sequence[Schema], kinds: Sequence[frozenset[str]]
    ) -> int | None:
        """Return a branch that may match a value of this kind as an earlier one does."""
        members = [index for index, each in enumerate(kinds) if kind in each]
        if len(members) < 2:
            return None
        objects = [index for index in members if kinds[index] == frozenset(("object",))]
        listed = [index for index in members if self._constants(branches[index]) is not None]
        anything = sorted(set(members) - set(objects) - set(listed))  # of the kind
        if anything:
            others = [index for index in members if index != anything[0]]
            return max(anything[0], others[0])
        seen: dict[Hashable, int] = {}  # constants, by the branch that lists them
        for index in listed:
            for constant in self._constants(branches[index]) or ():
                if constant[0] == kind and seen.setdefault(constant, index) != index:
                    return index
        described = sorted(set(objects) - set(listed))
        mixed = sorted(set(listed) - set(objects))
        if described and mixed:
            return max(described[0], mixed[0])
        return self._objects_overlap(branches, objects) if described else None

    def _objects_overlap(self, branches: Sequence[Schema], group: list[int]) -> int | None:
        """Compute `_overlap_in` for branches that are all objects."""
        waiting = [(group, frozenset[str]())]
        overlaps: list[int] = []
        while waiting:
            group, used = waiting.pop()
            if len(group) < 2:
                continue
            name = self._tag(branches, group, used)
            if name is not None:
                waiting += [(part, used | {name}) for part in self._parts(branches, group, name)]
            elif len(group) > MAX_BY_PAIRS:
                overlaps.append(group[1])
            elif (index := self._overlap_by_pairs(branches, group)) is not None:
                overlaps.append(index)
        return min(overlaps, default=None)

    def _tag(
        self, branches: Sequence[Schema], group: Sequence[int], used: frozenset[str]
    ) -> str | None:
        """Return a property that all of a group require and list constants of."""
        names = set(required_of(branches[group[0]])) - used
        for index in group[1:]:
            names &= set(required_of(branches[index]))
        for name in sorted(names):
            if all(self._constants_of(branches[index], name) is not None for index in group):
                return name
        return None

    def _parts(
        self, branches: Sequence[Schema], group: Sequence[int], name: str
    ) -> Iterator[list[int]]:
        """Yield the parts of a group between which no constant of a property is shared."""
        part_of = list(range(len(group)))  # a forest: a place's parent, or itself
        first: dict[Hashable, int] = {}

        def root(place: int) -> int:
            while part_of[place] != place:
                part_of[place] = part_of[part_of[place]]
                place = part_of[place]
            return place

        for place, index in enumerate(group):
            for constant in self._constants_of(branches[index], name) or ():
                part_of[root(place)] = root(first.setdefault(constant, place))
        parts: dict[int, list[int]] = {}
        for place, index in enumerate(group):
            parts.setdefault(root(place), []).append(index)
        yield from parts.values()

    def _overlap_by_pairs(self, branches: Sequence[Schema], group: Sequence[int]) -> int | None:
        for place, index in enumerate(group):
            for other in group[:place]:
                if not self._are_told_apart(branches[index], branches[other]):
                    return index
        return None

    def _are_told_apart(self, one: Schema, other: Schema) -> bool:
        listed = (self._constants(one), self._constants(other))
        if listed[0] is not None and listed[1] is not None:
            return listed[0].isdisjoint(listed[1])
        for name in set(required_of(one)) & set(required_of(other)):
            ones, others = (self._constants_of(each, name) for each in (one, other))
            if ones is not None and others is not None and ones.isdisjoint(others):
                return True
        return False

    def _constants_of(self, schema: Schema, name: str) -> Constants | None:
        """Return the constants of a property."""
        properties = schema.get("properties")
        if not isinstance(properties, dict):
            return None
        return self._constants(self._resolve(properties.get(name)))

    def _constants(self, schema: Schema) -> Constants | None:
        """Return the only values that can match; None where they are not listed."""
        if id(schema) not in self._listed:
            self._listed[id(schema)] = _listed(schema)
        return self._listed[id(schema)]

    def _kinds(self, schema: Schema) -> frozenset[str]:
        """Return the types that may match; integers are numbers."""
        stated = schema.get("type")
        names = stated if isinstance(stated, list) else [stated]
        kinds = {str(name) for name in names if name is not None} or set(TYPES)
        kinds = {"number" if kind == "integer" else kind for kind in kinds}
        if (constants := self._constants(schema)) is not None:
            kinds &= {kind for kind, _ in constants}
        return frozenset(kinds)


def _listed(schema: Schema) -> Constants | None:
    if "const" in schema:
        return frozenset((_canonical(schema["const"]),))
    values = schema.get("enum")
    return frozenset(map(_canonical, values)) if isinstance(values, list) else None


def _canonical(value: object) -> Constant:
    """Return a JSON value's kind and content: the same for values that JSON Schema takes as equal,
    whatever the order of an object's keys, and 1 for 1.0."""
    match value:
        case None:
            return "null", None
        case bool():
            return "boolean", value
        case int() | float():
            return "number", _number(value)
        case str():
            return "string", value
        case Mapping():
            return "object", frozenset((key, _canonical(each)) for key, each in value.items())
        case Iterable():
            return "array", tuple(map(_canonical, value))
        case _:
            return "unknown", None


def _number(value: float) -> Hashable:
    """Return a number as it is hashed; large ones as text, since their hashes can be chosen."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return hex(value) if isinstance(value, int) and value.bit_length() > 60 else value


def required_of(schema: Schema) -> list[str]:
    """Return the properties that a schema requires."""
    names = schema.get("required")
    if not isinstance(names, list):
        return []
    return names if all(isinstance(name, str) for name in names) else []
