"""The process that renders a foreign template: `python -m …templates.template_child JSON…`."""

from __future__ import annotations

import json
import sys

from skerry_edge.text.templates.filters import TemplateRefusal
from skerry_edge.text.templates.sandbox import TemplateLimit
from skerry_edge.text.templates.template import FAILURES, MAX_SECONDS, ChatTemplate, TemplateError
from skerry_regions.process import confined

CPU_SECONDS = 2 * MAX_SECONDS  # of a rendering: its own limit shows first
LOADING_SECONDS = 5.0
MEMORY_BYTES = 256 << 20


def main(arguments: list[str]) -> None:
    """Compile the template that the arguments spell, in pieces, and render what comes."""
    source, tokens = json.loads("".join(arguments))
    try:
        with confined.loading(LOADING_SECONDS):
            template = ChatTemplate(source, tokens=tokens)
    except TemplateError as error:
        return confined.refuse(str(error))

    def work(message: bytes) -> bytes:
        asked = json.loads(message)
        answer = sorted(template.flags) if asked is None else _rendered(template, asked)
        return json.dumps(answer).encode()

    confined.serve(work, cpu_seconds=CPU_SECONDS, memory_bytes=MEMORY_BYTES)


def _rendered(template: ChatTemplate, asked: dict[str, object]) -> tuple[str, str]:
    """Return what it became, and the text that says so."""
    try:
        return "text", template.render(**asked)  # type: ignore[arg-type]
    except TemplateRefusal as error:
        return "refusal", str(error)
    except TemplateLimit as error:
        return "limit", str(error)
    except FAILURES as error:
        return "failure", type(error).__name__


if __name__ == "__main__":
    main(sys.argv[1:])
