"""What becomes of each field that a client sends: it works, is refused, or is named in a header.

A struct's own fields work. Of what upstream has beside them, a field that wants another kind of
answer is refused by its name; a hint, or what only upstream can use, changes no answer here and is
named in `x-skerry-ignored`, as is what is unknown. Nothing is left out in silence.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from skerry.errors import InvalidInput, RequestError, TaskNotSupported

HEADER: Final = "x-skerry-ignored"
UNENFORCED_HEADER: Final = "x-skerry-unenforced"  # what schemas say and grammars do not hold
MAX_NAMED: Final = 32  # in the header
MAX_NAME: Final = 64  # characters
MAX_PATH: Final = 200  # characters, of something in a schema
MAX_UNKNOWN: Final = 1024  # fields of a body that change nothing; no client has as many
MAX_CORRECTED: Final = 16  # of them, compared with all that are known: half a millisecond each
TYPING_MISTAKES: Final = 2  # edits between a name and one that was meant

raw_fields: Final = msgspec.json.Decoder(dict[str, Raw])
_UNPRINTABLE = re.compile(r"[^A-Za-z0-9_.$\[\]-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """Fields that upstream has and that do not work here, nested ones with their path.

    Each has the values that mean nothing, beside null, false, "" and []; other values of
    `refused` are errors.
    """

    refused: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    ignored: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    ignored_inside: tuple[str, ...] = ()  # of messages, blocks and tools, wherever they are


NOTHING: Final = Upstream()


class KnownFields:
    """The fields of one kind of request, and what is to be done about others."""

    def __init__(self, kind: type[Struct], upstream: Upstream, *, corrects: bool) -> None:
        """With `corrects`, a name that is nearly that of a field is taken for a mistake."""
        self._upstream = upstream
        self._inner = _structs_in(kind)
        self._names = _names(kind)
        self._corrects = corrects
        self.plain = self._names - self._inner.keys()  # with no fields inside to look at
        self.signs = tuple(b'"%b"' % name.encode() for name in upstream.ignored_inside)

    def left_out(self, body: bytes, given: Mapping[str, Raw]) -> Iterator[str]:
        """Yield the fields of a body, whose own are `given`, that change nothing.

        Raises `TaskNotSupported` for a field that is refused, and `InvalidInput` for a name that
        was typed wrong, or too many of them.
        """
        for name, sign in zip(self._upstream.ignored_inside, self.signs, strict=True):
            if sign in body:
                yield name
        for number, name in enumerate(self._unknown("", given, self._names)):
            if number == MAX_UNKNOWN:
                raise InvalidInput(f"Bad input: more than {MAX_UNKNOWN} fields are none of ours")
            if self._corrects and number < MAX_CORRECTED:
                self._correct(name)
            yield name

    def _unknown(self, path: str, given: Mapping[str, Raw], names: frozenset[str]) -> Iterator[str]:
        """Yield what is ignored of an object whose struct has these names."""
        for name, value in given.items():
            whole = path + name
            if name not in names:
                if self._is_ignored(whole, value):
                    yield whole
            elif (inner := self._inner.get(whole)) is not None and bytes(value)[:1] == b"{":
                yield from self._unknown(f"{whole}.", raw_fields.decode(value), inner)

    def _is_ignored(self, name: str, value: Raw) -> bool:
        """Return whether an unknown field is named as ignored; one that means nothing is not."""
        if (neutral := self._upstream.refused.get(name)) is not None:
            if _asks(value, neutral):
                raise TaskNotSupported(f"'{name}' is not supported by this model.", param=name)
            return False
        if (neutral := self._upstream.ignored.get(name)) is not None:
            return _asks(value, neutral)
        return True

    def _correct(self, name: str) -> None:
        """Raise `InvalidInput` for an unknown name that is near to a known one."""
        if "." in name or name in self._upstream.ignored:
            return
        known = {*self._names, *self._upstream.refused, *self._upstream.ignored}
        edits = {each: _edits(name, each) for each in sorted(known)}
        meant = min(edits, key=edits.__getitem__)
        if edits[meant] <= TYPING_MISTAKES:
            raise InvalidInput(
                f"Bad input: {name}: no such field; did you mean {meant}?", param=name
            )


def renamed(error: RequestError, names: Mapping[str, str]) -> RequestError:
    """Return an error with the beginning of its field's path replaced: what chat completions call a
    field, by what another dialect does."""
    for name, new in names.items():
        if error.param is not None and (error.param + ".").startswith(name + "."):
            param = new + error.param.removeprefix(name)
            return type(error)(error.message.replace(error.param, param), param=param)
    return error


def shown(name: str, longest: int = MAX_NAME) -> str:
    """Return a client's name of a field as headers and messages show it."""
    return _UNPRINTABLE.sub("?", name[:longest])


def header_of(ignored: Collection[str], longest: int = MAX_NAME) -> str:
    """Return a header's value: names of at most so many characters."""
    names = sorted(shown(name, longest) for name in ignored)
    more = [f"...{len(names) - MAX_NAMED}"] if len(names) > MAX_NAMED else []
    return ", ".join(names[:MAX_NAMED] + more)


def _asks(value: Raw, neutral: tuple[object, ...]) -> bool:
    if bytes(value) in (b"null", b"false", b"[]", b'""'):
        return False
    if not neutral:
        return True
    try:
        return msgspec.json.decode(value) not in neutral
    except (msgspec.DecodeError, RecursionError):  # a number beyond all, lists a thousand deep
        return True


def _names(kind: type[Struct]) -> frozenset[str]:
    return frozenset(each.encode_name for each in msgspec.structs.fields(kind))


def _structs_in(kind: type[Struct], path: str = "") -> dict[str, frozenset[str]]:
    """Return the names in each field that is an object of its own, by the field's path."""
    found: dict[str, frozenset[str]] = {}
    for each in msgspec.structs.fields(kind):
        for inner in _alternatives(each.type):
            if isinstance(inner, type) and issubclass(inner, Struct):
                where = path + each.encode_name
                found |= {where: _names(inner), **_structs_in(inner, f"{where}.")}
    return found


def _alternatives(kind: Any) -> tuple[Any, ...]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return typing.get_args(kind)
    return (kind,)


def _edits(name: str, known: str) -> int:
    """Return how many edits (Levenshtein, 1965) make one of the other; of more than
    `TYPING_MISTAKES`, only that it is more."""
    more = TYPING_MISTAKES + 1
    if abs(len(name) - len(known)) >= more:
        return more
    row = list(range(len(known) + 1))
    for i, letter in enumerate(name, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(known, 1):
            edit = min(row[j] + 1, row[j - 1] + 1, before + (letter != other))
            before, row[j] = row[j], edit
        if min(row) >= more:
            return more
    return row[-1]
