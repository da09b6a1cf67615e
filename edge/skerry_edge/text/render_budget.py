"""What one rendering of a template may still do: filters and functions of templates pay before they
make anything."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS, do_indent, do_int, make_attrgetter
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import safe_range
from jinja2.utils import Namespace, pass_context

MAX_DEPTH: Final = 100  # of nested values that are printed
METER: Final = "!meter"  # templates cannot spell a name with "!", so they cannot touch it
MAX_INTEGER_TEXT: Final = 1024  # characters of what becomes an integer
MAX_INDENT: Final = 64  # columns

_OWN: Final = (  # of Jinja's: those whose result is no larger than what they are given
    *("abs", "capitalize", "float", "lower", "title", "trim", "upper"),
    *("count", "d", "default", "dictsort", "first", "items", "last", "length", "list"),
    *("map", "max", "min", "reject", "rejectattr", "reverse", "select", "selectattr"),
    *("sort", "unique"),
)
_PLAIN: Final = (str, bool, int, float, type(None), Undefined)


class TemplateRefusal(Exception):
    """The template refused these messages by its own `raise_exception`, with its own words."""


class TemplateLimit(Exception):
    """Rendering took more work or time than a rendering may."""


class RenderBudget:
    """What one rendering may still do."""

    def __init__(self, work: int, seconds: float, clock: Callable[[], float]) -> None:
        self._work = work
        self._clock = clock
        self._deadline = clock() + seconds

    def charge(self, amount: int) -> None:
        """Pay for `amount` characters or items before making them. Raises `TemplateLimit`."""
        self._work -= amount
        if self._work < 0 or amount < 0:  # nothing is ever paid back
            raise TemplateLimit("too much text or too many steps")
        if self._clock() > self._deadline:
            raise TemplateLimit("too much time")

    def charge_size(self, value: object, *, indent: int = 0) -> None:
        """Pay for everything inside a value, as often as it is reached."""
        waiting = [(value, 0)]
        while waiting:
            value, depth = waiting.pop()
            size = 1 + depth * indent
            if isinstance(value, str):
                size += len(value)
            elif isinstance(value, dict):
                size += len(value)
                waiting.extend((each, depth + 1) for pair in value.items() for each in pair)
            elif isinstance(value, list | tuple):
                size += len(value)
                waiting.extend((each, depth + 1) for each in value)
            self.charge(size)

    def charge_printed(self, value: object, *, indent: int = 0) -> None:
        """Pay as by `charge_size` for a value that becomes text: refuses all but plain data, since
        what another object prints has no known bound."""
        if isinstance(value, str):
            self.charge(1 + len(value))
            return
        _check_plain(value, 0)
        self.charge_size(value, indent=indent)


def budget_of(context: Context) -> RenderBudget:
    """Return the meter of a rendering. Raises `TemplateLimit` where there is none."""
    meter = context.resolve(METER)
    if not isinstance(meter, RenderBudget):
        raise TemplateLimit("rendered without a meter")
    return meter


def _check_plain(value: object, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise TemplateLimit("values nested too deeply")
    if isinstance(value, dict):
        for key, each in value.items():
            _check_plain(key, depth + 1)
            _check_plain(each, depth + 1)
    elif isinstance(value, list | tuple):
        for each in value:
            _check_plain(each, depth + 1)
    elif not isinstance(value, _PLAIN):
        raise SecurityError(f"a {type(value).__name__} cannot be printed")


@pass_context
def printable(context: Context, value: Any) -> Any:
    budget_of(context).charge_printed(value)
    return value


@pass_context
def _charge(context: Context, amount: int) -> None:
    budget_of(context).charge(amount)


@pass_context
def _sized(context: Context, value: Any) -> Any:
    budget_of(context).charge_size(value)
    return value


@pass_context
def _string(context: Context, value: Any) -> str:
    budget_of(context).charge_printed(value)
    return str(value)


@pass_context
def _concatenate(context: Context, values: list[Any]) -> str:
    return "".join(_string(context, value) for value in values)


@pass_context
def _metered_range(context: Context, *args: int) -> range:
    result = safe_range(*args)
    budget_of(context).charge(len(result))
    return result


@pass_context
def join(context: Context, value: Any, d: str = "", attribute: str | None = None) -> str:
    items = list(value)
    if attribute is not None:
        items = list(map(make_attrgetter(context.environment, attribute), items))
    texts = [_string(context, item) for item in items]
    budget_of(context).charge(sum(map(len, texts)) + len(d) * len(texts))
    return str(d).join(texts)


def join_method(context: Context, separator: str, items: Any) -> str:
    texts = list(items)
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("join takes strings")
    return join(context, texts, separator)


@pass_context
def replace(context: Context, text: Any, old: str, new: str, count: int | None = None) -> str:
    plain = str(_string(context, text))
    found = plain.count(old) if count is None else min(plain.count(old), max(count, 0))
    budget_of(context).charge(len(plain) + found * len(new))
    return plain.replace(old, new, -1 if count is None else count)


@pass_context
def _indent(
    context: Context, text: str, width: int = 4, first: bool = False, blank: bool = False
) -> str:
    if not 0 <= width <= MAX_INDENT:
        raise SecurityError(f"indent by more than {MAX_INDENT} columns")
    budget_of(context).charge((len(text.splitlines()) + 2) * (width + 1))
    indented: str = do_indent(text, width, first, blank)
    return indented


@pass_context
def _tojson(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as transformers does: not escaped for HTML."""
    if indent is not None and not 0 <= indent <= MAX_INDENT:
        raise SecurityError(f"indent by more than {MAX_INDENT} columns")
    if separators is not None and any(len(separator) > 8 for separator in separators):
        raise SecurityError("separators of more than 8 characters")
    budget_of(context).charge_printed(value, indent=indent or 0)
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _int(value: Any, default: int = 0, base: int = 10) -> int:
    """Convert as Jinja does, but no text in which a huge number can be."""
    if isinstance(value, str) and len(value) > MAX_INTEGER_TEXT:
        raise SecurityError("integer too large")
    return do_int(value, default, base)


def _raise_exception(message: object) -> None:
    raise TemplateRefusal(str(message)[:500])


def functions(now: Callable[[], datetime]) -> dict[str, Any]:
    """Return what templates may call by name."""

    def strftime_now(format: str) -> str:
        return now().strftime(str(format)[:100])

    return {
        "range": _metered_range,
        "dict": dict,
        "namespace": Namespace,
        "raise_exception": _raise_exception,
        "strftime_now": strftime_now,
    }


FILTERS_OF_TEMPLATES: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {name: FILTERS[name] for name in _OWN}
    | {
        "indent": _indent,
        "int": _int,
        "join": join,
        "replace": replace,
        "safe": _string,
        "string": _string,
        "tojson": _tojson,
    }
)
PAYMENTS: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {"!charge": _charge, "!concatenate": _concatenate, "!sized": _sized}
)
"""Filters that only a changed syntax tree calls."""
