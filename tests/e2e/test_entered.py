"""What one plain streamed request enters: few files, and none of what it did not ask for."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from bench.measuring.entered import files_of_a_plain_stream

from skerry_regions.models.catalog import Catalog
from skerry_regions.models.model_files import ModelFiles

ROOT = Path(__file__).resolve().parents[2]
MOST = 60
MOST_UNNAMED = 2  # that a busy machine may enter besides
UNASKED = (
    "answer_headers", "hints", "reload", "whole_numbers", "api/batch", "api/cors", "api/documents",
    "api/fields",
    "gate/allowance_use", "gate/grants", "gate/quotas", "gate/residency", "money",
    "gate/steering", "gate/token_bucket", "gate/waiting_room", "ledger/idempotency",
    "ledger/repeats", "ledger/replay", "ledger/response_cache", "output", "telemetry/attempt_spans",
    "telemetry/otlp", "text/desk", "text/stops", "text/templates/filters",
    "text/templates/metering", "text/token_cache",
    "node/reporting",
    "engine/adjustments", "engine/drafts", "engine/exports", "engine/kv_exchange", "engine/masks",
    "engine/preemption", "engine/second_tier", "engine/speculation", "grammar", "pins",
    "node/grammar", "node/preparation", "kv", "zones",
)  # fmt: skip
STEP = re.compile(r"`(\w+/[\w/]+\.py): ([\w.]+)`")
ELSEWHERE = {  # steps of docs/request.md that are not entered here, and why
    "a shape or a protocol: no code of ours runs": {
        "TextGenerationInput", "Caller", "Job", "Submit", "ForwardBatch", "Tokens", "Done",
        "StreamObserver", "RegionClient.generate",
    },
    "where the node is another process": {
        "RemoteRegion.generate", "RemoteStream.start", "RemoteStream.__anext__",
        "CostPlacer.place", "Router.rank", "NodeLink.submit", "EdgeLink.data_received",
    },
    "where the prompt is long": {"TenantDesk.encode", "PrefixMemory.encode"},
    "when the trace is read": {"add_attempts"},
}  # fmt: skip


@pytest.mark.model
def test_a_plain_stream_enters_few_files_and_the_page_names_each(
    default_model: ModelFiles, tmp_path: Path
) -> None:
    spec = Catalog.load().resolve(default_model.id)
    home = Path(os.environ.get("SKERRY_TEST_HOME", ROOT / ".cache" / "skerry"))
    entered = files_of_a_plain_stream(
        spec, default_model, tmp_path, runner="numba", cache_dir=home / "cache"
    )
    unasked = {
        path: functions
        for path, functions in entered.items()
        if any(f"{_room(path)}/".startswith(f"{each}/") for each in UNASKED)
    }
    assert unasked == {}
    steps = set(STEP.findall((ROOT / "docs" / "request.md").read_text()))
    of_package = {path.partition("/")[2]: functions for path, functions in entered.items()}
    named = {path for path, _ in steps}
    assert len(of_package.keys() & named) <= MOST, "\n".join(entered)
    assert len(of_package.keys() - named) <= MOST_UNNAMED, "\n".join(entered)
    assert {
        name
        for path, name in steps
        if not any(f"{each}.".startswith(f"{name}.") for each in of_package.get(path, []))
    } == set[str]().union(*ELSEWHERE.values())


def _room(path: str) -> str:
    """Return `gate/quotas` of `edge/skerry_edge/gate/quotas.py`."""
    return path.split("/", 2)[2].removesuffix(".py")
