"""Where log lines go: JSON lines into a file or a pipe, short text to a person."""

from __future__ import annotations

import json
import logging
import sys
import time


def configure_logging() -> None:
    """A person at a terminal sees warnings; whatever collects stderr otherwise gets everything."""
    handler = logging.StreamHandler(sys.stderr)
    if sys.stderr.isatty():
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        level = logging.WARNING
    else:
        handler.setFormatter(JSONFormatter())
        level = logging.INFO
    logging.basicConfig(level=level, handlers=[handler])


class JSONFormatter(logging.Formatter):
    """One JSON object a line: UTC time, level, logger, message and traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": f"{time.strftime('%FT%T', time.gmtime(record.created))}.{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
