"""Chat templates: conversations laid out as the model was trained to read them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import jinja2
from jinja2 import meta
from jinja2.exceptions import SecurityError

from skerry_edge.text.templates.filters import FILTERS, METHODS, functions
from skerry_edge.text.templates.sandbox import (
    METER,
    RenderBudget,
    SandboxedTemplates,
    TemplateLimit,
)

MAX_SOURCE: Final = 64 << 10  # characters of a template; the longest published have half
BASE_WORK: Final = 4 << 20  # characters made, items visited and calls, of one rendering …
WORK_PER_CHARACTER: Final = 32  # … and for each character of its input
MAX_SECONDS: Final = 0.25  # of processor time, per rendering
FAILURES: Final = (  # what a template's code runs into on messages that it does not expect
    *(jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError),
    ValueError,
)


# What every rendering sets itself.
_OWN: Final = frozenset(("messages", "tools", "documents", "add_generation_prompt", METER))


class TemplateError(ValueError):
    """The template cannot be used with any messages; the message says why."""


class ChatTemplate:
    """A compiled chat template."""

    def __init__(
        self,
        source: str,
        *,
        tokens: Mapping[str, str] | None = None,
        now: Callable[[], datetime] = datetime.now,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """`tokens` are the template's variables such as `bos_token`; `now` is what the template
        may request; `clock` (seconds) bounds a rendering.

        Raises `TemplateError` for a template that does not compile, or that cannot lay out even a
        short conversation within the limits.
        """
        if len(source) > MAX_SOURCE:
            raise TemplateError(f"the chat template is longer than {MAX_SOURCE} characters")
        self._clock = clock
        self._tokens = dict(tokens or {})
        templates = SandboxedTemplates(functions(now), FILTERS, METHODS)
        try:
            self._template = templates.compile_metered(source)
            self._template.globals = dict(self._template.globals)  # each rendering copies it
            read = meta.find_undeclared_variables(templates.parse(source))
        except jinja2.TemplateSyntaxError as error:
            problem = f"line {error.lineno}: {error.message}"
            raise TemplateError(f"the chat template does not compile: {problem}") from None
        except (SecurityError, RecursionError, MemoryError, SyntaxError, ValueError) as error:
            raise TemplateError(f"the chat template cannot be used: {error}") from None
        self.flags = read - _OWN - self._tokens.keys() - templates.globals.keys()
        """Variables that it reads and requests may set."""
        self._try_out()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        flags: Mapping[str, Any] | None = None,
    ) -> str:
        """Lay out a conversation; of `flags`, variables that are none of the template's are left
        out.

        Raises `TemplateRefusal`, `TemplateLimit`, or one of `FAILURES`.
        """
        given = {name: value for name, value in (flags or {}).items() if name in self.flags}
        characters = _characters(messages) + _characters(tools) + _characters(given)
        work = BASE_WORK + WORK_PER_CHARACTER * characters
        meter = RenderBudget(work, MAX_SECONDS, self._clock)
        context = self._template.new_context(
            {
                **given,
                **self._tokens,
                "messages": messages,
                "tools": tools,
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
                METER: meter,
            }
        )
        return "".join(self._template.root_render_func(context))

    def _try_out(self) -> None:
        try:
            self.render([{"role": "user", "content": "Hello."}])
        except (TemplateLimit, SecurityError) as error:
            raise TemplateError(f"the chat template is not safe to run: {error}") from None
        except Exception:  # it may want other messages than these: that is for the request to meet
            return


def _characters(value: object) -> int:
    """Return characters of all strings in plain data."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_characters(key) + _characters(each) for key, each in value.items())
    if isinstance(value, Sequence):
        return sum(map(_characters, value))
    return 0
