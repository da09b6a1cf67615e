"""A Jinja environment for templates that strangers wrote: no way out, and no way to grow unpaid.

It is Jinja's immutable sandbox with allow-lists, set up as Hugging Face transformers does for chat
templates. Everything that can grow or repeat is metered: the template's syntax tree is changed so
that loops, macros, literals and filters pay for their size to a `RenderBudget` first (`metering`),
and the operators and calls that make long strings from short ones are replaced by ones that pay
before they do the work. A hostile template therefore ends after a bounded number of characters and
seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import pass_context

from skerry_edge.text.templates.metering import CHARGE, CONCATENATE, SIZED, Metering

MAX_DEPTH: Final = 100  # of nested values that are printed
MAX_INTEGER_BITS: Final = 4096
METER: Final = "!meter"  # templates cannot spell a name with "!", so they cannot touch it

_PLAIN: Final = (str, bool, int, float, type(None), Undefined)
_STRING_METHODS: Final = frozenset(
    (
        *("capitalize", "lower", "swapcase", "title", "upper"),
        *("count", "endswith", "find", "index", "rfind", "rindex", "startswith"),
        *("isalnum", "isalpha", "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper"),
        *("join", "partition", "replace", "rpartition", "rsplit", "split", "splitlines"),
        *("lstrip", "removeprefix", "removesuffix", "rstrip", "strip"),
    )
)
_CONTAINER_METHODS: Final = frozenset(("count", "get", "index", "items", "keys", "values"))
_SEQUENCES: Final = (str, list, tuple)


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
def _printable(context: Context, value: Any) -> Any:
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
def text_of(context: Context, value: Any) -> str:
    budget_of(context).charge_printed(value)
    return str(value)


@pass_context
def _concatenate(context: Context, values: list[Any]) -> str:
    return "".join(text_of(context, value) for value in values)


PAYMENTS: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {CHARGE: _charge, CONCATENATE: _concatenate, SIZED: _sized}
)
"""Filters that only a changed syntax tree calls."""


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks the model's turns for training; here it only
    prints what it holds."""

    tags = {"generation"}  # noqa: RUF012  # as the base class has it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class SandboxedTemplates(ImmutableSandboxedEnvironment):
    """The sandbox with allow-lists, and operators that pay before they make anything large."""

    intercepted_binops = frozenset(("+", "-", "*", "**", "%", "/", "//"))

    def __init__(
        self,
        functions: Mapping[str, Any],
        filters: Mapping[str, Callable[..., Any]],
        methods: Mapping[str, Callable[..., Any]],
    ) -> None:
        """`functions` and `filters` are all that templates may call by name; `methods` are called
        in place of those of strings."""
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # constant expressions too are computed at run time, metered
            finalize=_printable,
            extensions=[_GenerationTag, loopcontrols],
        )

        self.globals = dict(functions)
        self.filters = {**filters, **PAYMENTS}
        self._methods = methods

    def compile_metered(self, source: str) -> jinja2.Template:
        """Compile a template that renders with a `RenderBudget` as its variable `METER`.

        Raises `SecurityError` when it wants other files, and what Jinja and the compiler raise.
        """
        tree = self.parse(source)
        for kind in (nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport):
            if node := tree.find(kind):
                raise SecurityError(f"line {node.lineno} reads another file")
        return self.from_string(Metering().visit(tree))

    def wrap_str_format(self, value: Any) -> None:
        """Allow no `str.format`: a field's width is a length that was not paid for."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str):
            return attr in _STRING_METHODS
        if isinstance(obj, dict | list | tuple):
            return attr in _CONTAINER_METHODS
        if isinstance(obj, int | float | bytes):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call_filter(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call one as `map` does, by a name that the template gives: none of the payments."""
        if name in PAYMENTS:
            raise TemplateRuntimeError(f"No filter named {name!r}.")
        return super().call_filter(name, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget_of(context).charge(_result_size(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        meter = budget_of(__context)
        meter.charge(1)
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str) and (method := __self._methods.get(__obj.__name__)):
            return method(__context, owner, *args)
        result = super().call(__context, __obj, *args, **kwargs)
        meter.charge_size(result)
        return result


def _result_size(operator: str, left: Any, right: Any) -> int:
    """Return the size of an operation's result. Raises `SecurityError` for one of no use in
    templates, or on integers whose product or quotient would take long."""
    if operator == "+":
        both = isinstance(left, _SEQUENCES) and isinstance(right, _SEQUENCES)
        return 1 + (len(left) + len(right) if both else 0)
    if operator == "%" and isinstance(left, str):
        raise SecurityError("printf-style formatting is not available")
    if operator == "*" and isinstance(left, _SEQUENCES) and isinstance(right, int):
        return 1 + len(left) * max(right, 0)
    if operator == "*" and isinstance(right, _SEQUENCES) and isinstance(left, int):
        return 1 + len(right) * max(left, 0)
    if isinstance(left, int) and isinstance(right, int):
        bits, other = left.bit_length(), right.bit_length()
        if max(bits, other, bits * abs(right) if operator == "**" else 0) > MAX_INTEGER_BITS:
            raise SecurityError("integer too large")
    return 1
