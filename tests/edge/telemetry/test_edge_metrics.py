"""What an edge counts of requests that come to nothing."""

from __future__ import annotations

from tests.edge.support import Deployment


def test_requests_for_models_that_are_not_here_count_together(edge: Deployment) -> None:
    """An alert is made of it; names from outside make no series of their own."""
    assert edge.chat(model="@cf/none/no").status_code == 400
    assert edge.chat(model="@cf/none/other").status_code == 400
    native = edge.run_path.partition("/run/")[0] + "/run/@cf/none/no"
    assert edge.client.post(native, json={"prompt": "x"}).status_code == 400
    embedding = {"model": "@cf/none/no", "input": "x"}
    assert edge.client.post("/ai/v1/embeddings", json=embedding).status_code == 400
    lines = edge.edge.metrics.render().decode().splitlines()
    counted = [line for line in lines if line.startswith("skerry_generation_errors_total{")]
    name = 'skerry_generation_errors_total{model_name="",code="model_not_found"}'
    assert counted == [f"{name} 4"]
