"""Input files of batches, checked line by line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.edge.scripted_region import MODEL
from tests.edge.support import ALIAS, CHAT, specs

from skerry_edge.api.batch.input_file import InputFile
from skerry_edge.api.batch.wire import LineError
from skerry_edge.ledger.batches import BatchLimits
from skerry_regions.models.catalog import Catalog

URL = "/v1/chat/completions"
LIMITS = BatchLimits(file_lines=3, line_bytes=400, reported_errors=2)


def line(custom_id: str = "a", **changes: Any) -> dict[str, Any]:
    body = {"model": MODEL, "messages": [], **changes.pop("body", {})}
    return {"custom_id": custom_id, "method": "POST", "url": URL, "body": body, **changes}


def read(*lines: dict[str, Any] | bytes, chunk: int = 7) -> InputFile:
    data = b"\n".join(
        each if isinstance(each, bytes) else json.dumps(each).encode() for each in lines
    )
    file = InputFile(URL, Catalog(specs()).resolve, LIMITS)
    file.read(data[start : start + chunk] for start in range(0, len(data), chunk))
    return file


def the_error(*lines: dict[str, Any] | bytes) -> LineError:
    [error] = read(*lines).errors
    return error


def test_lines_become_items() -> None:
    file = read(line("a"), b"", line("b", body={"seed": 7, "model": ALIAS}), b"  \r")
    assert file.errors == []
    assert file.model is not None
    assert file.model.id == MODEL
    assert [item.reference for item in file.items] == ["a", "b"]
    first, second = (json.loads(item.payload) for item in file.items)
    neutral = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0}
    neutral |= {"repetition_penalty": 1.0}
    assert first | {"seed": 0} == {"model": MODEL, "messages": [], "seed": 0, **neutral}
    assert 0 <= first["seed"] < 1 << 63  # drawn when it was submitted
    assert second["seed"] == 7


@pytest.mark.parametrize(
    ("bad", "code", "param"),
    [
        (b"{", "invalid_json_line", None),
        (b"[]", "invalid_input", None),
        (b"\xff", "invalid_json_line", None),
        (line(method="GET"), "invalid_method", "method"),
        (line(url="/v1/embeddings"), "mismatched_url", "url"),
        (line(custom_id=""), "invalid_input", "custom_id"),
        (line(body={"model": None}), "invalid_input", "body.model"),
        (line(body={"model": "@cf/no/such"}), "model_not_found", "body.model"),
        (line(body={"stream": True}), "invalid_input", "body.stream"),
        ({"custom_id": "a", "method": "POST", "url": URL, "body": {}}, "missing_required_parameter",
         "body.model"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_line_is_told(
    bad: dict[str, Any] | bytes, code: str, param: str | None
) -> None:
    error = the_error(line("ok"), bad)
    assert (error.code, error.line, error.param) == (code, 2, param)
    assert error.message


def test_ids_differ_and_the_model_does_not() -> None:
    assert the_error(line("a"), line("a")).code == "duplicate_custom_id"
    assert the_error(line("a"), line("b", body={"model": CHAT})).code == "mismatched_model"


def test_files_are_bounded() -> None:
    assert the_error(line("a"), line("b"), line("c"), line("d")).code == "too_many_tasks"
    too_long = the_error(line("a"), line("b", body={"user": "x" * 400}))
    assert (too_long.code, too_long.line) == ("line_too_long", 2)
    assert the_error().code == "empty_file"
    assert the_error(b"\n\n").code == "empty_file"
    assert len(read(b"{", b"{", b"{").errors) == 2
