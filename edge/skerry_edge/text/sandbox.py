"""A Jinja environment for templates that strangers wrote: no way out, and no way to grow unpaid.

It is Jinja's immutable sandbox with allow-lists, set up as Hugging Face transformers does for chat
templates. Everything that can grow or repeat is metered: the template's syntax tree is changed so
that loops, macros, literals and filters pay for their size to a `RenderBudget` first, and the
operators and calls that make long strings from short ones are replaced by ones that pay before they
do the work. A hostile template therefore ends after a bounded number of characters and seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from skerry_edge.text.render_budget import (
    FILTERS_OF_TEMPLATES,
    PAYMENTS,
    budget_of,
    functions,
    join_method,
    printable,
    replace,
)

MAX_INTEGER_BITS: Final = 4096

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

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # constant expressions too are computed at run time, metered
            finalize=printable,
            extensions=[_GenerationTag, loopcontrols],
        )

        self.globals = functions(now)
        self.filters = {**FILTERS_OF_TEMPLATES, **PAYMENTS}

    def compile_metered(self, source: str) -> jinja2.Template:
        """Compile a template that renders with a `RenderBudget` as its variable `METER`.

        Raises `SecurityError` when it wants other files, and what Jinja and the compiler raise.
        """
        tree = self.parse(source)
        for kind in (nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport):
            if node := tree.find(kind):
                raise SecurityError(f"line {node.lineno} reads another file")
        return self.from_string(_Metering().visit(tree))

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
        if isinstance(owner, str) and __obj.__name__ in ("join", "replace"):
            grow = join_method if __obj.__name__ == "join" else replace
            return grow(__context, owner, *args)
        result = super().call(__context, __obj, *args, **kwargs)
        meter.charge_size(result)
        return result


class _Metering(NodeTransformer):
    """Puts the payments into a template's syntax tree."""

    def visit_Const(self, node: nodes.Const) -> nodes.Node:
        """Refuse a float beyond all: Jinja writes it as a name that Python does not know."""
        if isinstance(node.value, float) and math.isinf(node.value):
            raise SecurityError("number too large")
        return node

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
