"""What one rendering of a template may still do, paid before it is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, Undefined

MAX_DEPTH: Final = 100  # of nested values that are printed
METER: Final = "!meter"  # templates cannot spell a name with "!", so they cannot touch it

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
        """As `charge_size`, for a value that becomes text: refuses all but plain data, since what
        another object prints has no known bound."""
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
