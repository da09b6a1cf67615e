"""Handling of each field that a client sends: it works, is refused, or is named in a header.

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
from typing import Any, Final, TypeVar, cast

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

ENVELOPE: Final = "response_format.json_schema"  # of a schema
NESTED: Final = frozenset(("type", "function"))  # of a tool that has its function inside

_fields: Final = msgspec.json.Decoder(dict[str, Raw])
_elements: Final = msgspec.json.Decoder(list[Raw])
S = TypeVar("S", bound=Struct)

_UNPRINTABLE = re.compile(r"[^A-Za-z0-9_.$\[\]-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """Fields that upstream has and that do not work here, nested ones with their path.

    Each has the values that mean nothing, beside null, false, "" and []; other values of
    `refused` are errors. In a path `[]` is any element of a list.
    """

    refused: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    ignored: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    ignored_inside: tuple[str, ...] = ()  # of messages, blocks and tools, wherever they are
    echoed: frozenset[str] = frozenset()  # inside of lists: of answers, which clients send back
    # Of objects that structs have whole: what is known in each, by its path.
    objects: Mapping[str, frozenset[str]] = field(default_factory=dict)


NOTHING: Final = Upstream()


class KnownFields:
    """The fields of one kind of request, and what is to be done about others."""

    def __init__(self, kind: type[Struct], upstream: Upstream, *, corrects: bool) -> None:
        """With `corrects`, a name that is nearly that of a field is taken for a mistake."""
        self._upstream = upstream
        self._inner = _structs_in(kind)
        self._names = _names(kind)
        for path, names in upstream.objects.items():
            if re.split(r"[.\[]", path)[0] in self._names:
                self._inner[path] = names
        self._corrects = corrects
        self.signs = (  # in bodies of which structs do not see each field
            *map(_sign, upstream.ignored_inside),
            *{_sign(re.split(r"[.\[]", path.removesuffix("[]"))[-1]) for path in upstream.objects},
            b"\\u00",  # a name may be written with escapes
        )

    def left_out(self, body: bytes) -> Iterator[str]:
        """Yield the fields of a body that change nothing.

        Raises `TaskNotSupported` for a field that is refused, and `InvalidInput` for a name that
        was typed wrong, or too many of them.
        """
        for name in self._upstream.ignored_inside:
            if _sign(name) in body:
                yield name
        for number, (path, name) in enumerate(self._unknown("", _fields.decode(body), self._names)):
            if number == MAX_UNKNOWN:
                raise InvalidInput(f"Bad input: more than {MAX_UNKNOWN} fields are none of ours")
            if self._corrects and number < MAX_CORRECTED:
                self._check_spelling(path, name)
            yield path + name

    def _unknown(
        self, path: str, given: Mapping[str, Raw], names: frozenset[str]
    ) -> Iterator[tuple[str, str]]:
        """Yield path and name of what is ignored of an object whose struct has these names."""
        for name, value in given.items():
            whole = path + name
            if name not in names:
                if self._is_ignored(whole, name, value):
                    yield path, name
            elif whole in self._inner or f"{whole}[]" in self._inner:
                yield from self._inside(whole, value)

    def _inside(self, path: str, value: Raw) -> Iterator[tuple[str, str]]:
        """Yield what is ignored of an object, or of those in a list, each name once."""
        start = bytes(value)[:1]
        if start == b"{" and path in self._inner:
            fields = _fields.decode(value)
            if path != ENVELOPE or "schema" in fields:  # else it is a schema itself
                yield from self._unknown(f"{path}.", fields, self._inner[path])
        elif start == b"[" and (names := self._inner.get(f"{path}[]")) is not None:
            found = dict[tuple[str, str], None]()
            for each in _elements.decode(value):
                if bytes(each)[:1] == b"{":
                    fields = _fields.decode(each)
                    known = NESTED if path == "tools" and "function" in fields else names
                    found.update(dict.fromkeys(self._unknown(f"{path}[].", fields, known)))
                    if len(found) > MAX_UNKNOWN:  # it is refused
                        break
            yield from found

    def _is_ignored(self, whole: str, name: str, value: Raw) -> bool:
        """Return whether an unknown field is named as ignored; one that means nothing is not."""
        if (neutral := self._upstream.refused.get(whole)) is not None:
            if _asks(value, neutral):
                raise TaskNotSupported(f"'{whole}' is not supported by this model.", param=whole)
            return False
        if (neutral := self._upstream.ignored.get(whole)) is not None:
            return _asks(value, neutral)
        if "[]." in whole:
            is_expected = name in self._upstream.echoed or name in self._upstream.ignored_inside
            return not is_expected and _asks(value, ())
        return True

    def _check_spelling(self, path: str, name: str) -> None:
        """Raise `InvalidInput` for an unknown name that is near to that of a field beside it."""
        if path + name in self._upstream.ignored:
            return
        known = self._inner[path[:-1]] if path else self._names
        if not path:
            known = known.union(self._upstream.refused, self._upstream.ignored)
        edits = {each: _edits(name, each) for each in sorted(known)}
        nearest = min(edits, key=edits.__getitem__)
        if edits[nearest] <= TYPING_MISTAKES:
            raise InvalidInput(
                f"Bad input: {path}{name}: no such field; did you mean {nearest}?",
                param=path + name,
            )


def strict(kind: type[S], known: dict[type[Struct], type[Struct]] | None = None) -> type[S]:
    """Return a struct's twin, in which a field that it does not know is an error; so are those of
    the structs in it. `known` are the twins so far."""
    twins = {} if known is None else known
    if kind not in twins:
        fields = [
            (each.name, twin, _field_like(each))
            for each in msgspec.structs.fields(kind)
            if (twin := _strict_type(each.type, twins)) != each.type
        ]
        twins[kind] = msgspec.defstruct(
            kind.__name__,
            fields,
            bases=(kind,),
            module=kind.__module__,
            kw_only=True,
            forbid_unknown_fields=True,
        )
    return cast(type[S], twins[kind])


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


def _sign(name: str) -> bytes:
    """Return what is in each body that has a field of this name."""
    return b'"%b"' % name.encode()


def _names(kind: type[Struct]) -> frozenset[str]:
    return frozenset(each.encode_name for each in msgspec.structs.fields(kind))


def _structs_in(kind: type[Struct], path: str = "") -> dict[str, frozenset[str]]:
    """Return the names in each field that is an object of its own, by the field's path; those in
    lists of them, of whichever kind, by the path and `[]`."""
    found: dict[str, frozenset[str]] = {}
    for each in msgspec.structs.fields(kind):
        for inner, where in _objects(each.type, path + each.encode_name):
            tag = inner.__struct_config__.tag_field
            names = _names(inner) | ({tag} if tag else set())
            found[where] = found.get(where, frozenset()) | names
            for deeper, more in _structs_in(inner, f"{where}.").items():
                found[deeper] = found.get(deeper, frozenset()) | more
    return found


def _objects(kind: Any, path: str) -> Iterator[tuple[type[Struct], str]]:
    """Yield the structs that a field may hold, and the path of each."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        for each in args:
            yield from _objects(each, path)
    elif origin is typing.Annotated:
        yield from _objects(args[0], path)
    elif origin is list:
        yield from _objects(args[0], f"{path}[]")
    elif isinstance(kind, type) and issubclass(kind, Struct):
        yield kind, path


def _strict_type(kind: Any, known: dict[type[Struct], type[Struct]]) -> Any:
    """Return a field's type with the twins of structs; see `strict`."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(_strict_type(each, known) for each in args)]  # noqa: UP007
    if origin is typing.Annotated:
        return typing.Annotated[(_strict_type(args[0], known), *args[1:])]
    if origin is list:
        return list[_strict_type(args[0], known)]  # type: ignore[misc]  # known when it runs
    return strict(kind, known) if isinstance(kind, type) and issubclass(kind, Struct) else kind


def _field_like(given: msgspec.structs.FieldInfo) -> Any:
    """Return a field of the same name and default."""
    defaults: dict[str, Any] = {
        "default": given.default,
        "default_factory": given.default_factory,
    }
    return msgspec.field(name=given.encode_name, **defaults)


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
