"""Encoders in the catalog and the store: described, installed, opened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.core.random_embedders import EMBEDDERS, INSTRUCTION, write_embedder
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
        (
            "pooling_mode_weightedmean_tokens",
            ["Transformer", "Pooling"],
            r"pooling is None, not one of \('mean', 'cls', 'max', 'lasttoken'\)",
        ),
        ("pooling_mode_cls_token", ["Transformer", "LSTM"], r"modules\.json has LSTM"),
    ],
)
def test_what_we_cannot_do_is_refused(
    tmp_path: Path, mode: str, modules: list[str], reason: str
) -> None:
    write_sentence_transformers(write_folder(tmp_path), mode, modules)
    with pytest.raises(UnsupportedModel, match=reason):
        describe(tmp_path, "@cf/me/encoder")


def test_other_decoders_that_embed_are_refused(tmp_path: Path) -> None:
    """Served as what makes text, they would answer nonsense."""
    folder = write_encoder(tmp_path / "m", model_type="gemma2")
    (folder / "modules.json").write_text("[]")
    with pytest.raises(UnsupportedModel, match="model_type 'gemma2' does not embed here"):
        describe(folder, "a/b")


@pytest.mark.parametrize(
    ("name", "embedding"),
    [
        (
            "Qwen3-Embedding",
            Embedding(
                dimensions=64,
                pooling="last",
                query_prompt="Instruct: {instruction}\nQuery:",
                instruction=INSTRUCTION,
            ),
        ),
        (
            "EmbeddingGemma",
            Embedding(
                dimensions=64,
                query_prompt="task: {instruction} | query: ",
                instruction="search result",
                document_prompt="title: none | text: ",
            ),
        ),
        ("Gemma 3, causal, with tanh", Embedding(dimensions=32, pooling="cls", text_prompt="p ")),
    ],
)
def test_decoders_that_embed_are_described(tmp_path: Path, name: str, embedding: Embedding) -> None:
    write_embedder(tmp_path, name)
    spec = describe(tmp_path, "@cf/me/embedder")
    assert (spec.task, spec.embedding, spec.context_window) == ("text-embeddings", embedding, 200)
    dense = [f"{n}_Dense/{file}" for n in range(2, 2 + len(EMBEDDERS[name].dense))
             for file in ("config.json", "model.safetensors")]  # fmt: skip
    wanted = ["config.json", "tokenizer.json", "model.safetensors"]
    assert [file.name for file in spec.files] == wanted + (
        ["modules.json", *dense] if dense else []
    )
    store = ModelStore(tmp_path / "home")
    assert store.pull(spec, lambda _what, _share: None).token_form == "one_way"


def test_a_length_stated_with_the_tokenizer_is_the_models(tmp_path: Path) -> None:
    write_folder(tmp_path)
    settings = tmp_path / "tokenizer_config.json"
    for length, context in ((40, 40), (1 << 80, 70), (0, 70)):
        settings.write_text(json.dumps({"model_max_length": length}))
        assert describe(tmp_path, "@cf/me/encoder").context_window == context
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 32}')
    assert describe(tmp_path, "@cf/me/encoder").context_window == 32


def test_pooling_is_read_as_sentence_transformers_6_writes_it(tmp_path: Path) -> None:
    write_sentence_transformers(write_folder(tmp_path), "", ["Transformer", "Pooling"])
    pooling = tmp_path / "1_Pooling" / "config.json"
    stated = {"embedding_dimension": 96, "pooling_mode": "lasttoken", "include_prompt": True}
    pooling.write_text(json.dumps(stated))
    wanted = Embedding(dimensions=96, pooling="last", normalize=False)
    assert describe(tmp_path, "@cf/me/encoder").embedding == wanted
    for change, reason in (
        ({"pooling_mode": ["mean", "max"]}, r"pooling is \['mean', 'max'\]"),
        ({"include_prompt": False}, "include_prompt false"),
    ):
        pooling.write_text(json.dumps(stated | change))
        with pytest.raises(UnsupportedModel, match=reason):
            describe(tmp_path, "@cf/me/encoder")


def test_a_dense_layer_that_is_not_there_is_named(tmp_path: Path) -> None:
    write_embedder(tmp_path, "EmbeddingGemma")
    (tmp_path / "3_Dense" / "model.safetensors").unlink()
    with pytest.raises(UnsupportedModel, match=r"modules\.json wants 3_Dense/model\.safetensors"):
        describe(tmp_path, "@cf/me/embedder")


@pytest.mark.parametrize("path", ["../2_Dense", "/etc", "a/b", ".hidden"])
def test_modules_lie_below_the_model(tmp_path: Path, path: str) -> None:
    write_embedder(tmp_path, "EmbeddingGemma")
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules[2]["path"] = path
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UnsupportedModel, match="not a list of modules"):
        describe(tmp_path, "@cf/me/embedder")


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
