"""What templates may call by name: filters and functions that pay before they make anything."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.filters import do_indent, do_int, make_attrgetter
from jinja2.runtime import Context
from jinja2.sandbox import safe_range
from jinja2.utils import Namespace, pass_context

from skerry_edge.text.templates.sandbox import budget_of, text_of

MAX_INTEGER_TEXT: Final = 1024  # characters of what becomes an integer
MAX_INDENT: Final = 64  # columns

_OWN: Final = (  # of Jinja's: those whose result is no larger than what they are given
    *("abs", "capitalize", "float", "lower", "title", "trim", "upper"),
    *("count", "d", "default", "dictsort", "first", "items", "last", "length", "list"),
    *("map", "max", "min", "reject", "rejectattr", "reverse", "select", "selectattr"),
    *("sort", "unique"),
)


class TemplateRefusal(Exception):
    """The template refused these messages by its own `raise_exception`, with its own words."""


@pass_context
def _metered_range(context: Context, *args: int) -> range:
    result = safe_range(*args)
    budget_of(context).charge(len(result))
    return result


@pass_context
def _join(context: Context, value: Any, d: str = "", attribute: str | None = None) -> str:
    items = list(value)
    if attribute is not None:
        items = list(map(make_attrgetter(context.environment, attribute), items))
    texts = [text_of(context, item) for item in items]
    budget_of(context).charge(sum(map(len, texts)) + len(d) * len(texts))
    return str(d).join(texts)


def _join_method(context: Context, separator: str, items: Any) -> str:
    texts = list(items)
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("join takes strings")
    return _join(context, texts, separator)


@pass_context
def _replace(context: Context, text: Any, old: str, new: str, count: int | None = None) -> str:
    plain = str(text_of(context, text))
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


FILTERS: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {name: JINJA_FILTERS[name] for name in _OWN}
    | {
        "indent": _indent,
        "int": _int,
        "join": _join,
        "replace": _replace,
        "safe": text_of,
        "string": text_of,
        "tojson": _tojson,
    }
)
METHODS: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {"join": _join_method, "replace": _replace}
)
"""Called in place of a string's own methods of these names."""
