"""Models of one's own by `skerry models add`: folders in safetensors, served by real processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import OpenAI
from tests.core.random_embedders import write_embedder
from tests.core.random_encoders import KERNELS
from tests.e2e.command import Skerry
from tests.edge.api.workers_ai.test_classification import write_model

from skerry import InvalidInput
from skerry.tasks import ClassificationInputs, Context

RANKER, CLASSIFIER = "@cf/me/ranker", "@cf/me/classifier"
EMBEDDER = "@cf/me/embedder"
TOPOLOGY = f"""
regions: [{{name: here, iata: FRA}}]
pools:
  - {{name: rank, region: here, role: hybrid, model: "{RANKER}"}}
  - {{name: classify, region: here, role: hybrid, model: "{CLASSIFIER}"}}
  - {{name: embed, region: here, role: hybrid, model: "{EMBEDDER}"}}
edges: [{{name: edge, region: here, port: 0}}]
"""


@pytest.fixture
def skerry(tmp_path: Path) -> Iterator[Skerry]:
    """A home whose catalog has a model that ranks, one that classifies and a decoder that embeds,
    and compiled kernels."""
    skerry = Skerry(tmp_path / "home")
    skerry.home.mkdir()
    KERNELS.mkdir(parents=True, exist_ok=True)
    (skerry.home / "cache").symlink_to(KERNELS)
    folders = {
        RANKER: write_model(tmp_path / "ranker", ["LABEL_0"]),
        CLASSIFIER: write_model(tmp_path / "classifier", ["no", "yes"]),
        EMBEDDER: tmp_path / "embedder",
    }
    write_embedder(folders[EMBEDDER], "EmbeddingGemma")
    for model, folder in folders.items():
        done = skerry("models", "add", str(folder), "--as", model)
        assert done.returncode == 0, done.stderr
    yield skerry
    assert skerry("down", "--timeout", "5").returncode == 0


def check_answers(skerry: Skerry) -> None:
    contexts: list[Context] = [{"text": "the cat"}, {"text": "sat"}, {"text": "a b c"}]
    alone: dict[str, Any] = {"query": "the cat"}
    with skerry.ai() as ai:
        ranking = ai.run(RANKER, {"query": "the cat", "contexts": contexts, "top_k": 2})
        scores = [each.score for each in ranking.response]
        assert scores == sorted(scores, reverse=True)
        assert len({each.id for each in ranking.response}) == 2
        labels = ai.run(CLASSIFIER, ClassificationInputs(text="the cat"))
        assert [each.label for each in labels] == ["no", "yes"]
        assert sum(each.score for each in labels) == pytest.approx(1)
        with pytest.raises(InvalidInput, match="contexts"):
            ai.run(RANKER, alone)
        found = ai.run(EMBEDDER, {"queries": ["w1 w2"], "documents": ["w3", "w1 w2"]}).numpy()
        plain = ai.run(EMBEDDER, {"text": ["task: search result | query: w1 w2"]}).numpy()
        np.testing.assert_array_equal(found[:1], plain)
    config = json.loads((skerry.home / "config.json").read_text())
    with OpenAI(base_url=f"{config['url']}/v1", api_key=config["api_token"]) as client:
        reply = client.embeddings.create(model=EMBEDDER, input="title: none | text: w3")
    np.testing.assert_array_equal(np.array(reply.data[0].embedding, np.float32), found[1])


def test_they_are_served_by_one_process(skerry: Skerry) -> None:
    skerry.up(f"--model={RANKER}", f"--model={CLASSIFIER}", f"--model={EMBEDDER}", runner="numba")
    check_answers(skerry)


@pytest.mark.slow
def test_they_are_served_by_nodes(skerry: Skerry, tmp_path: Path) -> None:
    topology = tmp_path / "topology.yaml"
    topology.write_text(TOPOLOGY)
    done = skerry("up", "--detach", "--topology", str(topology))
    assert done.returncode == 0, done.stderr
    check_answers(skerry)
