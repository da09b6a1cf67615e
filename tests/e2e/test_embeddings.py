"""Embeddings by a platform of real processes, beside a model that makes text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.core.random_encoders import KERNELS
from tests.e2e.command import MODEL, Skerry, new_home

from skerry import InvalidInput, SkerryError
from skerry_regions.models.model_files import ModelFiles

pytestmark = pytest.mark.model

ENCODER = "@cf/sentence-transformers/all-minilm-l6-v2"
TOPOLOGY = f"""
regions: [{{name: here, iata: FRA}}]
pools:
  - {{name: chat, region: here, role: hybrid, model: "{MODEL}", runner: toy}}
  - {{name: embed, region: here, role: hybrid, model: "{ENCODER}"}}
edges: [{{name: edge, region: here, port: 0}}]
"""


@pytest.fixture
def skerry(
    tmp_path: Path, default_model: ModelFiles, embedding_model: ModelFiles
) -> Iterator[Skerry]:
    """A home with both models and compiled kernels, where nothing runs yet."""
    skerry = new_home(tmp_path, default_model)
    folder = embedding_model.directory
    (skerry.home / "models" / folder.name).symlink_to(folder)
    KERNELS.mkdir(parents=True, exist_ok=True)
    (skerry.home / "cache").symlink_to(KERNELS)
    yield skerry
    assert skerry("down", "--timeout", "5").returncode == 0


def check_answers(skerry: Skerry) -> None:
    texts = ["the cat sat on the mat", "a feline rested on a rug", "tax law"]
    with skerry.ai() as ai:
        vectors = ai.run(ENCODER, {"text": texts}).numpy()
        assert vectors.shape == (3, 384)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
        assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]
        alone = ai.run(ENCODER, {"text": texts[1]})
        np.testing.assert_array_equal(alone.numpy()[0], vectors[1])
        with pytest.raises(InvalidInput):
            ai.run(ENCODER, {"prompt": "The sea is"})
        assert ai.run(MODEL, {"prompt": "The sea is", "max_tokens": 4})["response"]
        queued = ai.batch(ENCODER, [{"text": text} for text in texts]).wait(timeout=60)
        later = [each.unwrap().numpy()[0] for each in queued]
        np.testing.assert_array_equal(later, vectors)


def test_both_models_are_served_by_default(skerry: Skerry) -> None:
    printed = skerry.up()
    assert ENCODER in printed
    assert [node["model"] for node in skerry.status()["nodes"]] == [MODEL, ENCODER]
    check_answers(skerry)


def test_a_node_of_a_topology_embeds(skerry: Skerry, tmp_path: Path) -> None:
    topology = tmp_path / "topology.yaml"
    topology.write_text(TOPOLOGY)
    done = skerry("up", "--detach", "--topology", str(topology))
    assert done.returncode == 0, done.stderr
    check_answers(skerry)


def test_a_model_that_is_not_installed_says_how_to_get_it(
    skerry: Skerry, embedding_model: ModelFiles
) -> None:
    (skerry.home / "models" / embedding_model.directory.name).unlink()
    skerry.up()
    with skerry.ai() as ai, pytest.raises(SkerryError, match=f"skerry models pull {ENCODER}"):
        ai.run(ENCODER, {"text": "a"})
