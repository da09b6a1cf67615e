"""Answers that `Responder` rendered, taken apart so that they fit other queries.

What follows the question is the same for every query of one name and type. For names that do not
exist by themselves it is the same but for compression pointers: those into the question's tail, or
behind it, move by as many bytes as the name is longer. They are found by rendering twice, with
names of which one is a byte longer, and are checked with a third.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace

import dns.name

from skerry_dns.fast.asked import MAX_NAME

HEADER = struct.Struct("!HHHHHH")
QUESTION_TAIL = 4  # bytes: type and class
POINTER = 0xC000
MOVED = (1, 23)  # bytes by which the names of further renderings are longer
MAX_LABEL = 63

Render = Callable[[dns.name.Name], bytes]


class NotATemplate(Exception):
    """Renderings differ by more than their pointers."""


@dataclass(frozen=True, slots=True)
class Template:
    """One answer without its question and OPT record."""

    flags: int  # AA and the code
    counts: tuple[int, int, int]  # records of answer, authority, additional
    body: bytes
    name_length: int = 0  # of the name that it was rendered for, in bytes
    pointers: tuple[int, ...] = ()  # offsets in the body


def of_name(name: dns.name.Name, render: Render) -> Template:
    """Return the template for queries of exactly this name."""
    wire = render(name)
    _, flags, _, answer, authority, additional = HEADER.unpack_from(wire)
    length = len(name.to_wire() or b"")
    body = wire[HEADER.size + length + QUESTION_TAIL :]
    return Template(flags, (answer, authority, additional), body, length)


def unused(name: dns.name.Name, exists: Callable[[dns.name.Name], bool]) -> dns.name.Name | None:
    """Return a name under this one that does not exist, nor those that `below` tries; None where
    there is no room for one."""
    for size in range(1, MAX_LABEL - max(MOVED)):
        under = _under(name, size)
        if under is None:
            return None
        if not exists(under) and not any(exists(longer) for longer in _longer(under)):
            return under
    return None


def below(under: dns.name.Name, render: Render) -> Template:
    """Return the template for queries of every name that does not exist, with the parent that
    `under` (`unused`) has.

    Raises `NotATemplate`.
    """
    template = of_name(under, render)
    others = [of_name(longer, render) for longer in _longer(under)]
    template = replace(template, pointers=_pointers(template.body, others[0].body))
    for extra, other in zip(MOVED, others, strict=True):
        if _moved(template, extra) != other.body or other.counts != template.counts:
            raise NotATemplate
    return template


def _under(name: dns.name.Name, size: int) -> dns.name.Name | None:
    if len(name.to_wire() or b"") + 1 + size + max(MOVED) > MAX_NAME:
        return None
    return dns.name.Name((b"~" * size, *name.labels))


def _longer(under: dns.name.Name) -> list[dns.name.Name]:
    first, *labels = under.labels
    return [dns.name.Name((first + b"~" * extra, *labels)) for extra in MOVED]


def _pointers(first: bytes, second: bytes) -> tuple[int, ...]:
    found: list[int] = []
    at = 0
    while at < min(len(first), len(second)) - 1:
        here, there = (int.from_bytes(each[at : at + 2], "big") for each in (first, second))
        moves = here >= POINTER and there == here + MOVED[0]
        if moves:
            found.append(at)
        at += 2 if moves else 1
    return tuple(found)


def _moved(template: Template, extra: int) -> bytes:
    body = bytearray(template.body)
    for at in template.pointers:
        body[at : at + 2] = (int.from_bytes(body[at : at + 2], "big") + extra).to_bytes(2, "big")
    return bytes(body)
