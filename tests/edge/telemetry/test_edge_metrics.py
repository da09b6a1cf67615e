"""What an edge counts of requests that come to nothing."""

from __future__ import annotations

from tests.edge.support import Deployment


def test_requests_for_models_that_are_not_here_count_together(edge: Deployment) -> None:
    """An alert is made of it; names from outside make no series of their own."""
    before = failures(edge)
    assert edge.chat(model="@cf/none/no").status_code == 400
    assert edge.chat(model="@cf/none/other").status_code == 400
    native = edge.run_path.partition("/run/")[0] + "/run/@cf/none/no"
    assert edge.client.post(native, json={"prompt": "x"}).status_code == 400
    embedding = {"model": "@cf/none/no", "input": "x"}
    assert edge.client.post("/ai/v1/embeddings", json=embedding).status_code == 400
    after = failures(edge)
    more = {each: after[each] - before.get(each, 0) for each in after}
    assert {each: number for each, number in more.items() if number} == {
        'skerry_generation_errors_total{model_name="",code="model_not_found"}': 4
    }


def failures(edge: Deployment) -> dict[str, int]:
    """Generations that failed so far, by series: the tests of a session share the edge."""
    lines = edge.edge.metrics.render().decode().splitlines()
    counted = [line for line in lines if line.startswith("skerry_generation_errors_total{")]
    return {name: int(number) for name, number in (line.rsplit(" ", 1) for line in counted)}
