"""Log lines as JSON: a request's ids come by themselves, and no prompt's text unless asked for."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from tests.clock import Clock
from tests.edge.support import Deployment, deployed
from tests.edge.telemetry.test_tracing import new_trace

from skerry_cli.logs import JSONFormatter
from skerry_edge.limits import Limits
from skerry_edge.telemetry import tracing

SECRET = "zanzibar-nobody-may-read-this"


class Log:
    """Everything that is logged while a test runs."""

    def __init__(self) -> None:
        self.text = io.StringIO()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.getvalue().splitlines()]


@pytest.fixture
def log() -> Generator[Log]:
    log = Log()
    handler = logging.StreamHandler(log.text)
    handler.setFormatter(JSONFormatter())
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield log
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


def test_a_line_of_a_request_has_its_ids_and_its_own_fields(log: Log) -> None:
    trace = new_trace(Clock(500.0))
    logger = logging.getLogger("skerry.test")
    with tracing.tracing(trace):
        logger.info("it took %d", 3, extra={"fields": {"seconds": 0.5}})
    logger.warning("nobody's")
    first, second = log.lines
    assert first["message"] == "it took 3"
    assert (first["level"], first["logger"]) == ("info", "skerry.test")
    assert (first["request_id"], first["trace_id"]) == ("r", trace.context.trace_id)
    assert first["seconds"] == 0.5
    assert "request_id" not in second


def test_an_exception_is_one_line(log: Log) -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("skerry.test").exception("failed")
    [line] = log.lines
    assert line["exception"].endswith("ValueError: two\nlines")


def test_what_json_cannot_say_is_logged_too(log: Log) -> None:
    fields = {"file": "caf\udce9.gguf", "count": 1 << 70, "path": Path("/tide")}
    logging.getLogger("skerry.test").info("odd", extra={"fields": fields})
    [line] = log.lines
    assert line["message"] == "'odd'"
    assert (line["file"], line["count"]) == (r"'caf\udce9.gguf'", str(1 << 70))


def test_no_text_of_prompts_or_answers_is_logged(edge: Deployment, log: Log) -> None:
    edge.run(prompt=SECRET)
    edge.chat(stream=True)
    edge.client.post(edge.chat_path, json={"model": SECRET, "messages": SECRET})
    edge.client.post(edge.run_path, json={"prompt": SECRET, "temperature": "hot"})
    edge.client.post(edge.run_path, content=SECRET.encode())
    access = [line for line in log.lines if line["logger"] == "skerry.access"]
    assert [line["status"] for line in access] == [200, 200, 400, 400, 400]
    assert all(len(line["trace_id"]) == 32 and line["request_id"] for line in access)
    assert access[0]["path"].endswith("/ai/run/@cf/test/bytes")
    assert SECRET not in log.text.getvalue()


def test_prompts_are_logged_where_the_operator_wants_them(tmp_path: Path, log: Log) -> None:
    with deployed(tmp_path, Limits(drain_seconds=1), log_prompts=True) as edge:
        reply = edge.run(prompt=SECRET)
    [line] = [line for line in log.lines if "prompt" in line]
    assert SECRET in line["prompt"]
    assert line["request_id"] == reply.headers["x-request-id"]
