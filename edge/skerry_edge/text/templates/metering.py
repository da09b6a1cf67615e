"""Payments in the syntax tree of a template: what grows or repeats pays for its size first."""

from __future__ import annotations

import math
from typing import Final

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.visitor import NodeTransformer

# Filters that pay; templates cannot spell a name with "!".
CHARGE: Final = "!charge"
CONCATENATE: Final = "!concatenate"
SIZED: Final = "!sized"

Repeatable = nodes.For | nodes.Macro | nodes.CallBlock | nodes.Block


class Metering(NodeTransformer):
    """Puts the payments into a template's syntax tree."""

    def visit_Const(self, node: nodes.Const) -> nodes.Node:
        """Refuse a float beyond all: Jinja writes it as a name that Python does not know."""
        if isinstance(node.value, float) and math.isinf(node.value):
            raise SecurityError("number too large")
        return node

    def visit_For(self, node: Repeatable) -> nodes.Node:
        """Let each run of a body pay for the body's own text."""
        text = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_filter(nodes.Const(1 + text), CHARGE)))
        return node

    visit_Macro = visit_CallBlock = visit_Block = visit_For

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        self.generic_visit(node)
        if node.node is not None:  # None in {% filter %}, whose text was paid for when printed
            node.node = _filter(node.node, SIZED)
        return node

    def visit_Compare(self, node: nodes.Compare | nodes.List | nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return _filter(node, SIZED)

    visit_List = visit_Dict = visit_Compare

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _filter(node, SIZED) if isinstance(node.arg, nodes.Slice) else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes), CONCATENATE)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _filter(node, SIZED) if node.ctx == "load" else node


def _filter(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None)
