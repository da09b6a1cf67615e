"""Errors of an edge's own raise their alert, and no other."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path

import pytest
from tests.e2e.command import MODEL, Skerry, new_home, until
from tests.e2e.control.control_client import ControlPlane
from tests.infra.loads import a_prompt, load
from tests.infra.watching import SLOW, Prometheus, assert_fires_alone

from skerry_regions.models.model_files import ModelFiles

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(300)]

FILE = f"""\
regions: [{{name: ams, iata: AMS}}]
pools: [{{name: none, region: ams, role: hybrid, model: "{MODEL}", runner: toy, replicas: 0}}]
edges: [{{name: edge, region: ams}}]
"""


@contextlib.contextmanager
def requests_that_nobody_serves(skerry: Skerry) -> Generator[None]:
    """The model has no node, by its operator's wish, and none is started."""
    with load(skerry, "edge", 2, a_prompt(8, 1)):
        yield


def test_errors_raise_their_alert(tmp_path: Path, default_model: ModelFiles) -> None:
    skerry = new_home(tmp_path, default_model)
    (tmp_path / "platform.yaml").write_text(FILE)
    (skerry.home / "limits.yaml").write_text("hold_seconds: 0.5\n")
    control = ControlPlane(skerry)
    try:
        assert skerry("apply", "-f", str(tmp_path / "platform.yaml")).returncode == 0
        control.until_ready("edge_nodes/edge")
        with Prometheus(tmp_path, skerry, *SLOW) as prometheus:
            until(lambda: prometheus.up().get("skerry-edge"))
            assert_fires_alone(prometheus, skerry, requests_that_nobody_serves, "SkerryErrors")
    finally:
        control.stop()
