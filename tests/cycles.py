"""Objects of the product that refer to themselves, which only a collection frees.

Collecting stops every thread of a process for as long as it takes, and what a request had stays
until then.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def counted() -> Generator[Counter[str]]:
    """Give the counter of those that are made while entered, by type; it is filled at the end."""
    found = Counter[str]()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found.update(type(each).__qualname__ for each in gc.garbage if _is_ours(each))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def _is_ours(each: object) -> bool:
    """Return whether the product's code made an object, or ran in it."""
    if isinstance(each, FrameType):
        return str(each.f_globals.get("__name__")).startswith("skerry")
    return type(each).__module__.startswith("skerry")
