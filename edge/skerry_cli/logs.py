"""Log output: JSON lines into a file or a pipe, short text on a terminal.

A line carries ids, names and numbers, and no text of prompts or answers, unless the operator said
for prompts (`SKERRY_LOG_PROMPTS=1`). What a program is to read of a line is given to the logger as
`extra={"fields": {…}}`; a line about a request gets its id and trace by itself.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any, Literal

import orjson

from skerry_edge.telemetry import tracing
from skerry_regions.process.log_files import RotatedErrors

LOG_PROMPTS = "SKERRY_LOG_PROMPTS"


def logs_prompts() -> bool:
    """Return whether the operator wants prompts' text in the log; what a process starts inherits
    it."""
    return os.environ.get(LOG_PROMPTS, "") not in ("", "0")


LogForm = Literal["text", "json"]


def configure_logging(form: LogForm | None = None) -> None:
    """Show warnings to a person at a terminal; whatever collects stderr otherwise gets everything.

    `form` says which of the two it is, where the operator does.
    """
    handler = RotatedErrors()
    if form == "text" or (form is None and sys.stderr.isatty()):
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        level = logging.WARNING
    else:
        handler.setFormatter(JSONFormatter())
        level = logging.INFO
    logging.basicConfig(level=level, handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request that we make


class JSONFormatter(logging.Formatter):
    """One JSON object a line: UTC time, level, logger, message; the request and its trace; the
    line's own fields; a traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": f"{time.strftime('%FT%T', time.gmtime(record.created))}.{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (trace := tracing.current()) is not None:
            line["request_id"] = trace.request_id
            line["trace_id"] = trace.context.trace_id
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            line |= fields
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        try:
            return orjson.dumps(line, default=str).decode()
        except orjson.JSONEncodeError:  # a lone surrogate, as in a file's name, or a huge number
            plain = {key: ascii(value) for key, value in line.items()}
            return orjson.dumps(plain).decode()
