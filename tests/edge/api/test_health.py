"""Health tells of engines in this process that crashed or hang."""

from __future__ import annotations

from pathlib import Path

from tests.edge.support import deployed

from skerry_edge.limits import Limits


def test_an_ill_engine_shows(tmp_path: Path) -> None:
    ailments = ["the engine of m stopped on an error"]
    with deployed(tmp_path, Limits(), ailment=lambda: next(iter(ailments), None)) as edge:
        ill = edge.client.get("/healthz")
        assert (ill.status_code, ill.json()) == (503, {"status": "ill", "reason": ailments[0]})
        ailments.clear()
        well = edge.client.get("/healthz")
        assert (well.status_code, well.json()) == (200, {"status": "ok"})
