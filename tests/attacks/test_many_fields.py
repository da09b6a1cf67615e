"""Thousands of fields that no request has: compared and named a few at a time, or refused."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from tests.edge.loop_meter import MAX_SECONDS, METER
from tests.edge.support import deployed

from skerry.errors import InvalidInput, RequestError
from skerry.wire import TextGenerationInput
from skerry_edge.api import fields
from skerry_edge.api.anthropic import messages
from skerry_edge.api.bodies import Body
from skerry_edge.api.fields import MAX_CORRECTED, MAX_UNKNOWN
from skerry_edge.api.openai import chat, completions
from skerry_edge.api.workers_ai import native
from skerry_edge.limits import Limits

TURN = {"role": "user", "content": "x"}

NEAR = "frequency_penaltyyyy"  # nearly each letter is compared before it shows to be another


def unknown(number: int) -> dict[str, Any]:
    return {f"{NEAR[:16]}{each:04}": 0 for each in range(number)}


def test_few_of_them_are_compared_with_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each was, with sixty names: a second of the event loop for 64 KB."""
    compared: list[str] = []
    edits = fields._edits
    monkeypatch.setattr(
        fields, "_edits", lambda name, known: compared.append(name) or edits(name, known)
    )
    body = Body(TextGenerationInput, corrects=True)
    _, ignored = body.decode(json.dumps(unknown(MAX_UNKNOWN)).encode())
    assert len(ignored) == MAX_UNKNOWN
    assert len(set(compared)) == MAX_CORRECTED


def test_too_many_are_refused(tmp_path: Path) -> None:
    """All were sorted for a header, on the event loop: half a million of eight megabytes."""
    body = Body(TextGenerationInput)
    with pytest.raises(InvalidInput, match=f"more than {MAX_UNKNOWN} fields"):
        body.decode(json.dumps(unknown(MAX_UNKNOWN + 1)).encode())
    METER.read()
    with deployed(tmp_path, Limits()) as edge:
        assert edge.run(prompt="x", **unknown(MAX_UNKNOWN)).status_code == 200
        for number in (MAX_UNKNOWN + 1, 2500, 200_000):
            assert edge.run(prompt="x", **unknown(number)).status_code == 400
            assert edge.chat(**unknown(number)).status_code == 400
    worst, what = METER.read()
    assert worst <= MAX_SECONDS, what


@pytest.mark.parametrize("value", ["1e400", "9" * 5000, "[" * 900 + "]" * 900, '"\\ud800"'])
@pytest.mark.parametrize("name", ["metadata", "reasoning", "thinking", "modalities", "audio"])
def test_values_that_no_number_is_are_no_error_of_ours(name: str, value: str) -> None:
    """What is not ours is skipped as it stands, and was decoded to see whether it means anything:
    the answer was 500."""
    for kind in (chat._body, chat._run_body, native._input_body, completions._body, messages._body):
        body = {"model": "m", "prompt": "x", "max_tokens": 1, "messages": [TURN]}
        encoded = json.dumps(body)[:-1] + f', "{name}": {value}}}'
        with contextlib.suppress(RequestError):
            kind.decode(encoded.encode())
