"""Weights of BERT-like encoders: BERT, RoBERTa, XLM-RoBERTa and DistilBERT.

Read from `model.safetensors` and the `config.json` beside it, with Hugging Face's names. A head for
classification is read too; those for pooling and masked words are left out, and what else is
unknown is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from skerry_core.encoder.config import EncoderConfig, check_config
from skerry_core.weights.files import map_file, read_json_file
from skerry_core.weights.safetensors import read_safetensors
from skerry_core.weights.tensors import FileTensor, Float32, WeightsError, check_shapes, dequantize

MAX_CLASSES = 4096
_PREFIX = re.compile(r"(bert|roberta|distilbert)\.")
_NOT_WEIGHTS = re.compile(
    r"((bert|roberta|distilbert)\.)?embeddings\.(position_ids|token_type_ids)"
    r"|cls\..*|lm_head\..*|vocab_(transform|layer_norm|projector)\..*"
)
# DistilBERT's names, as BERT has them.
_DISTILLED = (
    (re.compile(r"^transformer\.layer\."), "encoder.layer."),
    (re.compile(r"\.attention\.q_lin\."), ".attention.self.query."),
    (re.compile(r"\.attention\.k_lin\."), ".attention.self.key."),
    (re.compile(r"\.attention\.v_lin\."), ".attention.self.value."),
    (re.compile(r"\.attention\.out_lin\."), ".attention.output.dense."),
    (re.compile(r"\.sa_layer_norm\."), ".attention.output.LayerNorm."),
    (re.compile(r"\.ffn\.lin1\."), ".intermediate.dense."),
    (re.compile(r"\.ffn\.lin2\."), ".output.dense."),
    (re.compile(r"\.output_layer_norm\."), ".output.LayerNorm."),
)
# Modules of a layer after Q, K and V.
_LAYER = (
    *("attention.output.dense", "attention.output.LayerNorm"),
    *("intermediate.dense", "output.dense", "output.LayerNorm"),
)
_HEAD = re.compile(r"(pooler|pre_classifier|classifier)\..*")
# Names of a head's two matrices: the first is followed by tanh, in DistilBERT by a ReLU.
_HEADS = {
    "bert": ("pooler.dense", "classifier"),
    "roberta": ("classifier.dense", "classifier.out_proj"),
    "xlm-roberta": ("classifier.dense", "classifier.out_proj"),
    "distilbert": ("pre_classifier", "classifier"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierHead:
    """What turns the first token's state into one score per class; matrices [outputs, inputs]."""

    dense: Float32
    dense_bias: Float32
    rectifies: bool  # a ReLU between the two matrices; else tanh
    out: Float32  # f32[classes, hidden]
    out_bias: Float32


class BertFile:
    """An open encoder: `model.safetensors` in a folder with its `config.json`.

    Opening maps the file and checks that every tensor is there in its shape; a page is read when it
    is first used.
    """

    def __init__(
        self, config: EncoderConfig, tensors: Mapping[str, FileTensor], num_classes: int
    ) -> None:
        self.config = config
        self.num_classes = num_classes  # of the head for classification; 0 when there is none
        self._tensors = tensors

    @classmethod
    def open(cls, path: Path) -> BertFile:
        """Open a file. Raises WeightsError naming the file, and the tensor or field at fault;
        OSError."""
        stated = path.with_name("config.json")
        config = check_config(read_json_file(stated), str(stated))
        read = read_safetensors(map_file(path), str(path), ignored=_NOT_WEIGHTS)
        tensors = {_bert_name(name, config): tensor for name, tensor in read.items()}
        classes = _classes(tensors, config, str(path))
        if not classes:  # an encoder alone: what belongs to a head that is not there is unused
            tensors = {name: each for name, each in tensors.items() if not _HEAD.fullmatch(name)}
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        check_shapes(shapes, _shapes(config, classes), str(path))
        return cls(config, tensors, classes)

    def words(self) -> Float32:
        """Return f32[vocabulary, hidden]: a view of the file where its format allows."""
        tensor = self._tensors["embeddings.word_embeddings.weight"]
        if tensor.format == "F32":
            words: Float32 = tensor.data.view(np.float32).reshape(tensor.shape)
            return words
        return dequantize(tensor)

    def positions(self) -> Float32:
        """Return f32[parts, positions, hidden], each part's token type added."""
        positions = self._get("embeddings.position_embeddings.weight")
        if self.config.type_vocab_size == 0:
            return positions[None]
        types = self._get("embeddings.token_type_embeddings.weight")[: self.config.parts]
        return positions[None] + types[:, None]

    def norm(self) -> Float32:
        """Return f32[2, hidden]: scale and shift of the embeddings' norm."""
        return np.stack([self._get(f"embeddings.LayerNorm.{kind}") for kind in ("weight", "bias")])

    def layer(self, index: int) -> list[Float32]:
        """Return one layer's weights in fp32, copied, in the order of `forward`'s fields.

        Matrices are [outputs, inputs], the first has Q above K above V.
        """
        names = [[f"attention.self.{kind}" for kind in ("query", "key", "value")]]
        names += [[name] for name in _LAYER]
        return [
            np.concatenate([self._get(f"encoder.layer.{index}.{name}.{part}") for name in together])
            for together in names
            for part in ("weight", "bias")
        ]

    def head(self) -> ClassifierHead | None:
        """Return the head for classification, if there is one."""
        if not self.num_classes:
            return None
        dense, out = _HEADS[self.config.model_type]
        return ClassifierHead(
            dense=self._get(f"{dense}.weight"),
            dense_bias=self._get(f"{dense}.bias"),
            rectifies=self.config.model_type == "distilbert",
            out=self._get(f"{out}.weight"),
            out_bias=self._get(f"{out}.bias"),
        )

    def _get(self, name: str) -> Float32:
        return dequantize(self._tensors[name])


def _bert_name(name: str, config: EncoderConfig) -> str:
    name = _PREFIX.sub("", name, count=1)
    if config.model_type == "distilbert":
        for theirs, ours in _DISTILLED:
            name = theirs.sub(ours, name, count=1)
    return name


def _classes(tensors: Mapping[str, FileTensor], config: EncoderConfig, file: str) -> int:
    dense, out = _HEADS[config.model_type]
    tensor = tensors.get(f"{out}.weight")
    if tensor is None or f"{dense}.weight" not in tensors:
        return 0
    if tensor.shape[0] > MAX_CLASSES:
        raise WeightsError(f"{file}: {tensor.shape[0]} classes, more than {MAX_CLASSES}")
    return tensor.shape[0]


def _shapes(config: EncoderConfig, classes: int) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config.vocab_size, hidden),
        "embeddings.position_embeddings.weight": (config.max_position_embeddings, hidden),
        "embeddings.LayerNorm.weight": (hidden,),
        "embeddings.LayerNorm.bias": (hidden,),
    }
    if config.type_vocab_size:
        shapes["embeddings.token_type_embeddings.weight"] = (config.type_vocab_size, hidden)
    dense: dict[str, tuple[int, int]] = {
        "attention.self.query": (hidden, hidden),
        "attention.self.key": (hidden, hidden),
        "attention.self.value": (hidden, hidden),
        "attention.output.dense": (hidden, hidden),
        "intermediate.dense": (inner, hidden),
        "output.dense": (hidden, inner),
    }
    matrices = {
        f"encoder.layer.{index}.{name}": shape
        for index in range(config.num_hidden_layers)
        for name, shape in dense.items()
    }
    if classes:
        first, second = _HEADS[config.model_type]
        matrices |= {first: (hidden, hidden), second: (classes, hidden)}
    for name, (outputs, inputs) in matrices.items():
        shapes[f"{name}.weight"] = (outputs, inputs)
        shapes[f"{name}.bias"] = (outputs,)
    for index in range(config.num_hidden_layers):
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            prefix = f"encoder.layer.{index}.{name}"
            shapes[f"{prefix}.weight"] = shapes[f"{prefix}.bias"] = (hidden,)
    return shapes
