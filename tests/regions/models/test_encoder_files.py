"""Encoders in the catalog and the store: described, installed, opened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.core.random_encoders import write_encoder

from skerry_regions.models.catalog import Catalog, CatalogError, Embedding, ModelFile, ModelSpec
from skerry_regions.models.catalog_edits import add_model
from skerry_regions.models.local_model import describe
from skerry_regions.models.problems import UnsupportedModel
from skerry_regions.models.store import ModelStore

TOKENIZER = {"version": "1.0", "truncation": {"max_length": 128}, "model": {"type": "WordPiece"}}


def write_folder(folder: Path, **overrides: Any) -> Path:
    write_encoder(folder, **overrides)
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    return folder


def write_sentence_transformers(folder: Path, mode: str, modules: list[str]) -> None:
    listed = [{"type": f"sentence_transformers.models.{name}"} for name in modules]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 96, "pooling_mode_mean_tokens": False, mode: True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 32}')


def test_a_bare_encoder_gives_normalized_means(tmp_path: Path) -> None:
    spec = describe(write_folder(tmp_path), "@cf/me/encoder")
    assert spec.task == "text-embeddings"
    assert spec.embedding == Embedding(dimensions=96, pooling="mean", normalize=True)
    assert spec.context_window == 70


def test_roberta_counts_positions_from_behind_the_padding(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, model_type="roberta", pad_token_id=1)
    assert describe(folder, "@cf/me/encoder").context_window == 68


@pytest.mark.parametrize(
    ("mode", "modules", "embedding"),
    [
        (
            "pooling_mode_cls_token",
            ["Transformer", "Pooling", "Normalize"],
            Embedding(dimensions=96, pooling="cls", normalize=True),
        ),
        (
            "pooling_mode_max_tokens",
            ["Transformer", "Pooling"],
            Embedding(dimensions=96, pooling="max", normalize=False),
        ),
    ],
)
def test_what_sentence_transformers_states_is_read(
    tmp_path: Path, mode: str, modules: list[str], embedding: Embedding
) -> None:
    write_sentence_transformers(write_folder(tmp_path), mode, modules)
    spec = describe(tmp_path, "@cf/me/encoder")
    assert (spec.embedding, spec.context_window) == (embedding, 32)


@pytest.mark.parametrize(
    ("mode", "modules", "reason"),
    [
        ("pooling_mode_lasttoken", ["Transformer", "Pooling"], "not one of mean, cls and max"),
        ("pooling_mode_cls_token", ["Transformer", "Dense"], r"modules\.json has Dense"),
    ],
)
def test_what_we_cannot_do_is_refused(
    tmp_path: Path, mode: str, modules: list[str], reason: str
) -> None:
    write_sentence_transformers(write_folder(tmp_path), mode, modules)
    with pytest.raises(UnsupportedModel, match=reason):
        describe(tmp_path, "@cf/me/encoder")


def test_decoders_that_embed_are_refused(tmp_path: Path) -> None:
    """Qwen3-Embedding and EmbeddingGemma: served as what makes text, they would answer nonsense."""
    folder = write_encoder(tmp_path / "m", model_type="qwen3")
    (folder / "modules.json").write_text("[]")
    with pytest.raises(UnsupportedModel, match="model_type 'qwen3' does not embed here"):
        describe(folder, "a/b")


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    (write_folder(tmp_path) / "model.safetensors").unlink()
    with pytest.raises(UnsupportedModel, match=r"it has no model\.safetensors"):
        describe(tmp_path, "@cf/me/encoder")


def test_an_encoder_is_installed_and_opened(tmp_path: Path) -> None:
    spec = describe(write_folder(tmp_path / "own"), "@cf/me/encoder")
    add_model(tmp_path / "home", spec)
    assert Catalog.load(tmp_path / "home").resolve("@cf/me/encoder") == spec
    store = ModelStore(tmp_path / "home")
    files = store.pull(spec, lambda _what, _share: None)
    assert files == store.open(spec)
    assert files.weights == tmp_path / "own"
    assert json.loads(files.tokenizer.read_bytes()) == TOKENIZER
    assert (files.architecture, files.vocab_size, files.token_form) == ("bert", 101, "one_way")


def test_the_packaged_encoder_says_what_its_vectors_are() -> None:
    spec = Catalog.load().resolve("@cf/sentence-transformers/all-minilm-l6-v2")
    assert spec.embedding == Embedding(dimensions=384, pooling="mean", normalize=True)
    assert spec.context_window == 256


@pytest.mark.parametrize("task", ["text-generation", "text-embeddings"])
def test_task_and_embedding_go_together(task: Any) -> None:
    spec = ModelSpec(
        id="@cf/me/encoder",
        source="file:/srv",
        files=(ModelFile("model.safetensors", 1, "0" * 64),),
        context_window=1,
        task=task,
        embedding=Embedding(dimensions=16) if task == "text-generation" else None,
    )
    with pytest.raises(CatalogError, match="`embedding` belongs to the task text-embeddings"):
        Catalog([spec])
