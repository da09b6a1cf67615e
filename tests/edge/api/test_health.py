"""Health reports engines in this process that crashed or hang."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.edge.scripted_region import MODEL
from tests.edge.support import ALIAS, UNSERVED, Deployment, deployed

from skerry_edge.limits import Limits


def test_an_ill_engine_shows(tmp_path: Path) -> None:
    ailments = ["the engine of m stopped on an error"]
    with deployed(tmp_path, Limits(), ailment=lambda: next(iter(ailments), None)) as edge:
        ill = edge.client.get("/healthz")
        assert (ill.status_code, ill.json()) == (503, {"status": "ill", "reason": ailments[0]})
        ailments.clear()
        well = edge.client.get("/healthz")
        assert (well.status_code, well.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize(
    ("model", "served"), [(MODEL, True), (ALIAS, True), (UNSERVED, False), ("never", False)]
)
def test_readiness_of_one_model(edge: Deployment, model: str, served: bool) -> None:
    reply = edge.client.get("/readyz", params={"model": model})
    assert reply.status_code == (200 if served else 503)
    assert reply.json()["models"] == ([MODEL] if served else [])


def test_readiness_goes_with_the_last_node_of_any_model(edge: Deployment) -> None:
    served = edge.region.served
    try:
        edge.region.served = frozenset({UNSERVED})
        assert edge.client.get("/readyz").json() == {"status": "ready", "models": [UNSERVED]}
        assert edge.client.get("/readyz", params={"model": MODEL}).status_code == 503
        edge.region.served = frozenset()
        assert edge.client.get("/readyz").status_code == 503
    finally:
        edge.region.served = served
