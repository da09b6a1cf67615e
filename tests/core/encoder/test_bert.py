"""Files of encoders: what is read, and what is refused with the name of the fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.core.random_encoders import CONFIG, random_encoder, write_encoder

from skerry_core.encoder.bert import BertFile
from skerry_core.weights.tensors import WeightsError


def opened(folder: Path) -> BertFile:
    return BertFile.open(folder / "model.safetensors")


def test_prefixes_and_heads_are_taken_off(tmp_path: Path) -> None:
    weights = random_encoder(CONFIG)
    plain = opened(write_encoder(tmp_path / "plain", weights))
    other = {f"bert.{name}": tensor for name, tensor in weights.items()}
    other["bert.pooler.dense.weight"] = other["cls.predictions.bias"] = np.zeros(3, np.float32)
    prefixed = opened(write_encoder(tmp_path / "prefixed", other))
    np.testing.assert_array_equal(plain.words(), prefixed.words())
    np.testing.assert_array_equal(plain.layer(1)[0], prefixed.layer(1)[0])


def test_buffers_of_integers_are_no_weights(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path)
    buffer = {"embeddings.position_ids": np.arange(70)[None]}
    save_file({**random_encoder(CONFIG), **buffer}, folder / "model.safetensors")
    assert opened(folder).words().shape == (101, 96)


def test_half_precision_is_widened(tmp_path: Path) -> None:
    weights = random_encoder(CONFIG)
    halved: Any = {name: tensor.astype(np.float16) for name, tensor in weights.items()}
    file = opened(write_encoder(tmp_path, halved))
    assert file.words().dtype == np.float32
    wanted = halved["embeddings.word_embeddings.weight"].astype(np.float32)
    np.testing.assert_array_equal(file.words(), wanted)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"model_type": "llama"}, "Invalid enum value 'llama'.*model_type"),
        ({"hidden_act": "relu"}, "Invalid enum value 'relu'.*hidden_act"),
        ({"hidden_size": 100}, "multiple of 16.*hidden_size"),
        ({"num_attention_heads": 5}, "a head must have a multiple of 16 dimensions"),
        ({"num_attention_heads": 6, "hidden_size": 144}, "a head must have a multiple of 16"),
        ({"is_decoder": True}, "is_decoder"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"max_position_embeddings": 1 << 20}, "max_position_embeddings"),
        ({"model_type": "roberta", "pad_token_id": 90}, "leaves room for no token"),
    ],
)
def test_another_architecture_is_refused(
    tmp_path: Path, overrides: dict[str, Any], reason: str
) -> None:
    folder = write_encoder(tmp_path)
    (folder / "config.json").write_text(json.dumps(CONFIG | overrides))
    with pytest.raises(WeightsError, match=f"config.json: .*{reason}"):
        opened(folder)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"hidden_size": 1, "hidden_size": 2}'])
def test_a_config_that_is_no_object_is_refused(tmp_path: Path, content: bytes) -> None:
    folder = write_encoder(tmp_path)
    (folder / "config.json").write_bytes(content)
    with pytest.raises(WeightsError, match=r"config\.json"):
        opened(folder)


def test_tensors_are_checked_by_name_and_shape(tmp_path: Path) -> None:
    name = "encoder.layer.1.output.dense.weight"
    for change, reason in (
        ({name: None}, "is missing"),
        (
            {name: np.zeros((96, 161), np.float32)},
            r"has shape \(96, 161\), the model needs \(96, 160\)",
        ),
        ({"encoder.layer.2.x": np.zeros(1, np.float32)}, "'encoder.layer.2.x' has no place"),
    ):
        changed = {**random_encoder(CONFIG), **change}
        weights = {key: tensor for key, tensor in changed.items() if tensor is not None}
        folder = write_encoder(tmp_path / reason[:6], weights)
        with pytest.raises(WeightsError, match=reason):
            opened(folder)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path)
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(WeightsError, match="the file is empty"):
        opened(folder)
