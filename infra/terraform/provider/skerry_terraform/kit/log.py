"""Log records as Terraform wants them of a plugin: a JSON object on a line of stderr."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime


class _Format(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        at = datetime.fromtimestamp(record.created, UTC)
        return json.dumps(
            {
                "@level": record.levelname.lower().replace("warning", "warn"),
                "@message": text,
                "@module": record.name,
                "@timestamp": at.isoformat(timespec="microseconds"),
            }
        )


def configure_logging() -> None:
    """Log to stderr, which Terraform shows where `TF_LOG` is set."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Format())
    logging.basicConfig(handlers=[handler], level=logging.INFO)
