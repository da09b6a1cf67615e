"""A Jinja environment for templates that strangers wrote: no way out, and no way to grow unpaid.

It is Jinja's immutable sandbox with allow-lists, set up as Hugging Face transformers does for chat
templates. Everything that can grow or repeat is metered: the template's syntax tree is changed so
that loops, macros, literals and filters pay for their size to a `Meter` first, and the operators
and calls that make long strings from short ones are replaced by ones that pay before they do the
work. A hostile template therefore ends after a bounded number of characters and seconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS, do_indent, make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Namespace, pass_context
from jinja2.visitor import NodeTransformer

MAX_DEPTH: Final = 100  # of nested values that are printed
MAX_INTEGER_BITS: Final = 4096
MAX_INDENT: Final = 64  # columns

METER: Final = "!meter"  # templates cannot spell a name with "!", so they cannot touch it

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
_FILTERS: Final = (  # of Jinja's own: those whose result is no larger than what they are given
    *("abs", "capitalize", "float", "int", "lower", "title", "trim", "upper"),
    *("count", "d", "default", "dictsort", "first", "items", "last", "length", "list"),
    *("map", "max", "min", "reject", "rejectattr", "reverse", "select", "selectattr"),
    *("sort", "unique"),
)
_PLAIN: Final = (str, bool, int, float, type(None), Undefined)
_SEQUENCES: Final = (str, list, tuple)


class TemplateRefusal(Exception):
    """The template refused these messages by its own `raise_exception`, with its own words."""


class TemplateLimit(Exception):
    """Rendering took more work or time than a rendering may."""


class Meter:
    """What one rendering may still do."""

    def __init__(self, work: int, seconds: float, clock: Callable[[], float]) -> None:
        self._work = work
        self._clock = clock
        self._deadline = clock() + seconds

    def charge(self, amount: int) -> None:
        """Pay for `amount` characters or items before making them. Raises `TemplateLimit`."""
        self._work -= amount
        if self._work < 0:
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
        """As `charge_size`, for a value that becomes text: refuses all but plain data, since what
        another object prints has no known bound."""
        if isinstance(value, str):
            self.charge(1 + len(value))
            return
        _check_plain(value, 0)
        self.charge_size(value, indent=indent)


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks the model's turns for training; here it only
    prints what it holds."""

    tags = {"generation"}  # noqa: RUF012  # as the base class has it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class SandboxedTemplates(ImmutableSandboxedEnvironment):
    """The sandbox with allow-lists, and operators that pay before they make anything large."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # constant expressions too are computed at run time, metered
            finalize=_printable,
            extensions=[_GenerationTag, loopcontrols],
        )

        def strftime_now(format: str) -> str:
            return now().strftime(str(format)[:100])

        self.globals = {
            "range": _metered_range,
            "dict": dict,
            "namespace": Namespace,
            "raise_exception": _raise_exception,
            "strftime_now": strftime_now,
        }
        self.filters = {name: FILTERS[name] for name in _FILTERS} | {
            "indent": _indent,
            "join": _join,
            "replace": _replace,
            "safe": _string,
            "string": _string,
            "tojson": _tojson,
            "!charge": _charge,
            "!concatenate": _concatenate,
            "!sized": _sized,
        }

    def compile_metered(self, source: str) -> jinja2.Template:
        """Compile a template that renders with a `Meter` as its variable `METER`.

        Raises `SecurityError` when it wants other files, and what Jinja and the compiler raise.
        """
        tree = self.parse(source)
        for kind in (nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport):
            if node := tree.find(kind):
                raise SecurityError(f"line {node.lineno} reads another file")
        return self.from_string(_Metering().visit(tree))

    def wrap_str_format(self, value: Any) -> None:
        """No `str.format`: a field's width is a length that nobody paid for."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str):
            return attr in _STRING_METHODS
        if isinstance(obj, dict | list | tuple):
            return attr in _CONTAINER_METHODS
        if isinstance(obj, int | float | bytes):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _meter(context).charge(_result_size(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        meter = _meter(__context)
        meter.charge(1)
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str) and __obj.__name__ in ("join", "replace"):
            grow = _join_method if __obj.__name__ == "join" else _replace
            return grow(__context, owner, *args)
        result = super().call(__context, __obj, *args, **kwargs)
        meter.charge_size(result)
        return result


class _Metering(NodeTransformer):
    """Puts the payments into a template's syntax tree."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        return self._pay_first(node, node.body)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._pay_first(node, node.body)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._pay_first(node, node.body)

    def visit_Block(self, node: nodes.Block) -> nodes.Node:
        return self._pay_first(node, node.body)

    def _pay_first(self, node: nodes.Node, body: list[nodes.Node]) -> nodes.Node:
        """Let each run of a body pay for the body's own text."""
        text = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        body.insert(0, nodes.ExprStmt(_filter(nodes.Const(1 + text), "!charge")))
        return node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        self.generic_visit(node)
        if node.node is not None:  # None in {% filter %}, whose text was paid for when printed
            node.node = _filter(node.node, "!sized")
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        return _filter(node, "!sized")

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _filter(node, "!sized") if isinstance(node.arg, nodes.Slice) else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes), "!concatenate")

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return _filter(node, "!sized")

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _filter(node, "!sized") if node.ctx == "load" else node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return _filter(node, "!sized")


def _filter(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None)


def _meter(context: Context) -> Meter:
    meter = context.resolve(METER)
    if not isinstance(meter, Meter):
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


def _result_size(operator: str, left: Any, right: Any) -> int:
    """Size of an operation's result. Raises `SecurityError` for one of no use in templates."""
    if operator == "+":
        both = isinstance(left, _SEQUENCES) and isinstance(right, _SEQUENCES)
        return 1 + (len(left) + len(right) if both else 0)
    if operator == "%" and isinstance(left, str):
        raise SecurityError("printf-style formatting is not available")
    if operator == "*" and isinstance(left, _SEQUENCES) and isinstance(right, int):
        return 1 + len(left) * max(right, 0)
    if operator == "*" and isinstance(right, _SEQUENCES) and isinstance(left, int):
        return 1 + len(right) * max(left, 0)
    if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
        bits, other = left.bit_length(), right.bit_length()
        if (bits + other if operator == "*" else bits * abs(right)) > MAX_INTEGER_BITS:
            raise SecurityError("integer too large")
    return 1


# --- what templates may call: each pays before it makes anything


@pass_context
def _printable(context: Context, value: Any) -> Any:
    _meter(context).charge_printed(value)
    return value


@pass_context
def _charge(context: Context, amount: int) -> None:
    _meter(context).charge(amount)


@pass_context
def _sized(context: Context, value: Any) -> Any:
    _meter(context).charge_size(value)
    return value


@pass_context
def _string(context: Context, value: Any) -> str:
    _meter(context).charge_printed(value)
    return str(value)


@pass_context
def _concatenate(context: Context, values: list[Any]) -> str:
    return "".join(_string(context, value) for value in values)


@pass_context
def _metered_range(context: Context, *args: int) -> range:
    result = safe_range(*args)
    _meter(context).charge(len(result))
    return result


@pass_context
def _join(context: Context, value: Any, d: str = "", attribute: str | None = None) -> str:
    items = list(value)
    if attribute is not None:
        items = list(map(make_attrgetter(context.environment, attribute), items))
    texts = [_string(context, item) for item in items]
    _meter(context).charge(sum(map(len, texts)) + len(d) * len(texts))
    return str(d).join(texts)


def _join_method(context: Context, separator: str, items: Any) -> str:
    texts = list(items)
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("join takes strings")
    return _join(context, texts, separator)


@pass_context
def _replace(context: Context, text: Any, old: str, new: str, count: int | None = None) -> str:
    plain = str(_string(context, text))
    found = plain.count(old) if count is None else min(plain.count(old), max(count, 0))
    _meter(context).charge(len(plain) + found * len(new))
    return plain.replace(old, new, -1 if count is None else count)


@pass_context
def _indent(
    context: Context, text: str, width: int = 4, first: bool = False, blank: bool = False
) -> str:
    if not 0 <= width <= MAX_INDENT:
        raise SecurityError(f"indent by more than {MAX_INDENT} columns")
    _meter(context).charge((len(text.splitlines()) + 2) * (width + 1))
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
    """JSON as transformers writes it: not escaped for HTML."""
    if indent is not None and not 0 <= indent <= MAX_INDENT:
        raise SecurityError(f"indent by more than {MAX_INDENT} columns")
    if separators is not None and any(len(separator) > 8 for separator in separators):
        raise SecurityError("separators of more than 8 characters")
    _meter(context).charge_printed(value, indent=indent or 0)
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: object) -> None:
    raise TemplateRefusal(str(message)[:500])
