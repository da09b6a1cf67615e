"""A stranger writes few lines; nothing else is left out."""

from __future__ import annotations

from skerry_edge.telemetry.sampled_lines import MAX_REFUSED, SampledLines


def test_lines_of_strangers_and_probes_are_few() -> None:
    now = [0.0]
    lines = SampledLines(lambda: now[0])
    assert [lines.left_out("/healthz", 200) for _ in range(3)] == [0, None, None]
    refused = [lines.left_out("/v1/models", 401) for _ in range(1000)]
    assert refused == [0] * MAX_REFUSED + [None] * (1000 - MAX_REFUSED)
    assert [lines.left_out("/v1/models", 200) for _ in range(1000)] == [0] * 1000
    assert lines.left_out("/healthz", 503) == 0, "what is wrong is always told"
    now[0] = 60.0
    assert lines.left_out("/healthz", 200) == 2
    assert [lines.left_out("/x", 401) for _ in range(2)] == [1000 - MAX_REFUSED, 0]
