"""Classification heads: against `transformers`, against their meaning in NumPy, and themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.core.encoder import reference_encoder
from tests.core.random_encoders import CONFIG, KERNELS, random_encoder, write_encoder

from skerry_core.config import ConfigError
from skerry_core.encoder.bert import BertFile
from skerry_core.encoder.bert_network import BertNetwork
from skerry_core.encoder.classifier import tanh
from skerry_core.encoder.encoder import Encoder
from skerry_core.weights.tensors import WeightsError

PAIRS = [([2, 5, 9, 3, 20, 21, 3], 4), ([2, 7, 3, 11, 12, 13, 14, 15, 3], 3), ([2, 3, 8, 3], 2)]
TEXTS, SECONDS = [ids for ids, _ in PAIRS], [second for _, second in PAIRS]


def write_transformers(folder: Path, family: str, classes: int) -> Any:
    """A random model of `transformers`, saved as it saves itself; returns the model."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(classes)
    shape = {"vocab_size": 60, "num_labels": classes, "initializer_range": 0.3}
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "max_position_embeddings": 40}
    match family:
        case "bert":
            config = transformers.BertConfig(**shape, **sizes, **heads)
            model = transformers.BertForSequenceClassification(config)
        case "roberta":
            config = transformers.RobertaConfig(**shape, **sizes, **heads, type_vocab_size=1)
            model = transformers.RobertaForSequenceClassification(config)
        case "xlm-roberta":
            config = transformers.XLMRobertaConfig(**shape, **sizes, **heads, type_vocab_size=1)
            model = transformers.XLMRobertaForSequenceClassification(config)
        case _:
            config = transformers.DistilBertConfig(
                **shape, dim=64, hidden_dim=96, n_layers=2, n_heads=2, max_position_embeddings=40
            )
            model = transformers.DistilBertForSequenceClassification(config)
    model.eval().save_pretrained(folder)
    return model


@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "distilbert"])
def test_the_same_as_transformers(tmp_path: Path, family: str, classes: int) -> None:
    model = write_transformers(tmp_path, family, classes)
    import torch

    encoder = Encoder.open(tmp_path, threads=1, cache_dir=KERNELS)
    scores = encoder.classify(TEXTS, second_starts=SECONDS)
    assert scores.shape == (3, classes)
    for ids, second, ours in zip(TEXTS, SECONDS, scores, strict=True):
        inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids))}
        if family == "bert":
            types = [int(place >= second) for place in range(len(ids))]
            inputs["token_type_ids"] = torch.tensor([types])
        with torch.no_grad():
            theirs = model(**inputs).logits[0].numpy()
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
    encoder.close()


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "distilbert"])
def test_the_same_vectors_as_transformers(tmp_path: Path, family: str) -> None:
    """A model with a head embeds as well: its states are those of the encoder beneath.

    Dense vectors of bge-m3, an XLM-RoBERTa, are its first token's, of length 1.
    """
    model = write_transformers(tmp_path, family, 2)
    import torch

    encoder = Encoder.open(tmp_path, threads=1, cache_dir=KERNELS)
    for ids, states in zip(TEXTS, reference_encoder.states_of(encoder, TEXTS), strict=True):
        with torch.no_grad():
            theirs = model.base_model(torch.tensor([ids])).last_hidden_state[0].numpy()
        np.testing.assert_allclose(states, theirs, atol=1e-4)
        (dense,) = encoder.encode([ids], pooling="cls")
        np.testing.assert_allclose(dense, theirs[0] / np.linalg.norm(theirs[0]), atol=1e-5)
    encoder.close()


# --- without transformers ------------------------------------------------------------------------


def write_classifier(folder: Path, classes: int = 3) -> Path:
    """A random BERT with a head, of the shape of `CONFIG`."""
    rng = np.random.default_rng(classes)
    hidden = CONFIG["hidden_size"]
    head = {
        "bert.pooler.dense.weight": rng.normal(size=(hidden, hidden)) / hidden**0.5,
        "bert.pooler.dense.bias": rng.normal(size=hidden),
        "classifier.weight": rng.normal(size=(classes, hidden)),
        "classifier.bias": rng.normal(size=classes),
    }
    encoder = {f"bert.{name}": tensor for name, tensor in random_encoder(CONFIG).items()}
    weights = encoder | {name: each.astype(np.float32) for name, each in head.items()}
    return write_encoder(folder, weights)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = write_classifier(tmp_path_factory.mktemp("classifier"))
    encoder = Encoder.open(folder, threads=2, cache_dir=KERNELS)
    yield encoder
    encoder.close()


def test_scores_mean_what_the_reference_says(classifier: Encoder) -> None:
    network = classifier.network
    assert isinstance(network, BertNetwork)
    file, head = network.file, network.file.head()
    assert head is not None
    for (ids, second), scores in zip(
        PAIRS, classifier.classify(TEXTS, second_starts=SECONDS), strict=True
    ):
        states = reference_encoder.encode(file, ids, second)
        wanted = reference_encoder.classify(states[0], head)
        np.testing.assert_allclose(scores, wanted, atol=1e-5)


def test_the_second_part_is_told_apart(classifier: Encoder) -> None:
    alone = classifier.classify(TEXTS)
    assert not np.array_equal(classifier.classify(TEXTS, second_starts=SECONDS), alone)
    whole = classifier.classify(TEXTS, second_starts=[len(ids) for ids in TEXTS])
    np.testing.assert_array_equal(whole, alone)


def test_scores_have_the_same_bits_in_every_batch(classifier: Encoder) -> None:
    together = classifier.classify(TEXTS * 5, second_starts=SECONDS * 5)
    for index, scores in enumerate(together):
        (ids, second) = PAIRS[index % 3]
        np.testing.assert_array_equal(classifier.classify([ids], second_starts=[second])[0], scores)


@pytest.mark.parametrize("x", [0.0, 1e-9, -0.3, 0.5, 3.0, -7.0, 19.0, 25.0, -1e300])
def test_tanh(x: float, classifier: Encoder) -> None:
    classifier.classify([[1]])  # has the kernels loaded
    assert abs(tanh(x) - np.tanh(x)) < 1e-15


def test_second_parts_go_with_texts(classifier: Encoder) -> None:
    with pytest.raises(ValueError, match="2 second parts of 3 texts"):
        classifier.classify(TEXTS, second_starts=[1, 2])


def test_a_model_without_a_head_says_so(tmp_path: Path) -> None:
    encoder = Encoder.open(write_encoder(tmp_path), threads=1, cache_dir=KERNELS)
    assert encoder.num_classes == 0
    with pytest.raises(ConfigError, match="no head for classification"):
        encoder.classify([[1]])
    assert BertFile.open(tmp_path / "model.safetensors").head() is None
    encoder.close()


def _without(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda weights: {key: each for key, each in weights.items() if key != name}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_without("classifier.bias"), "'classifier.bias' is missing"),
        (
            lambda weights: weights | {"classifier.weight": np.zeros((3, 95), np.float32)},
            "'classifier.weight' has shape",
        ),
        (
            lambda weights: weights | {"classifier.weight": np.zeros((5000, 96), np.float32)},
            "5000 classes, more than 4096",
        ),
    ],
)
def test_a_broken_head_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], dict[str, Any]], reason: str
) -> None:
    from safetensors.numpy import load_file

    folder = write_classifier(tmp_path)
    weights = change(load_file(folder / "model.safetensors"))
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(WeightsError, match=reason):
        BertFile.open(folder / "model.safetensors")
