"""What `skerry up` says: to a process that waits, and to a person."""

from __future__ import annotations

import io
import json
import os
import shlex

from skerry_cli.report import PipeReporter, ready_text

READY = {
    "url": "http://127.0.0.1:8787",
    "account_id": "a" * 32,
    "api_token": "skerry_1_secret",
    "models": ["@cf/huggingfacetb/smollm2-135m-instruct", "@cf/me/other"],
}


def read_all(descriptor: int) -> list[dict[str, object]]:
    with os.fdopen(descriptor, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def test_a_pipe_gets_progress_by_the_hundredth_and_then_ready() -> None:
    reader, writer = os.pipe()
    reporter = PipeReporter(writer)
    for share in (0.0, 0.0001, 0.5, 1.0):
        reporter.progress("downloading", share)
    reporter.ready(READY)
    assert read_all(reader) == [
        {"what": "downloading", "share": 0.0},
        {"what": "downloading", "share": 0.5},
        {"what": "downloading", "share": 1.0},
        READY,
    ]


def test_after_ready_nothing_is_written() -> None:
    reader, writer = os.pipe()
    reporter = PipeReporter(writer)
    reporter.ready(READY)
    reporter.progress("loading", 0.5)  # the descriptor may be another's by now
    assert read_all(reader) == [READY]


def test_nobody_waiting_is_no_reason_to_fail() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    reporter = PipeReporter(writer)
    reporter.progress("downloading", 0.5)
    reporter.ready(READY)


def test_the_curl_command_can_be_pasted() -> None:
    text = ready_text(READY, seconds=1.23, background=True)
    command = shlex.split(text[text.index("curl") :].replace("\\\n", ""))  # as a shell joins lines
    assert command[:3] == [
        "curl",
        "-N",
        f"http://127.0.0.1:8787/client/v4/accounts/{'a' * 32}/ai/run/"
        "@cf/huggingfacetb/smollm2-135m-instruct",
    ]
    assert command[3:5] == ["-H", "Authorization: Bearer skerry_1_secret"]
    assert json.load(io.StringIO(command[6]))["stream"] is True
    assert "ready after 1.2 s" in text
    assert "skerry down" in text
