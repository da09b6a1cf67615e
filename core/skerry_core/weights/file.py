"""Weights and configuration of a model from its file, whatever the file's kind.

`WeightFile` gives tensors under one set of names (GGUF's: `blk.0.attn_q.weight`) and in one order
of rows: Q and K in half-split rotary order, as the canonical KV wants them. GGUF stores those of
Llama with the pairs interleaved, and `WeightFile` puts them back. So a runner needs to know nothing
about the file, and must not permute again.

Every tensor that the configuration calls for is known to be there, in its shape, once a file is
open; what a file has beyond that is refused by name.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from skerry_core.config import ModelConfig
from skerry_core.weights.config import config_from_gguf, config_from_json
from skerry_core.weights.gguf import MAGIC, read_gguf
from skerry_core.weights.safetensors import read_json_object, read_safetensors
from skerry_core.weights.tensors import Bytes, Tensor, WeightsError, check_shapes, dequantize

__all__ = ["Tensor", "WeightFile", "WeightsError", "dequantize"]

_MAX_CONFIG_JSON = 1 << 20  # bytes
_MAX_FILES = 1000  # that one model is split over
# What rotary embeddings are computed from: the configuration says it too.
_NOT_WEIGHTS = re.compile(r"rope_freqs\.weight|model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")


class WeightFile:
    """Open weights: a `.gguf` file, or `.safetensors` files with their `config.json` beside them.

    Tensors are read-only views of the mapped file, so opening costs milliseconds and a page is read
    when it is first used. The mapping lasts as long as any of them does.
    """

    def __init__(
        self, config: ModelConfig, tensors: Mapping[str, Tensor], *, is_safetensors: bool
    ) -> None:
        self.config = config
        self.tensors = tensors
        self.is_safetensors = is_safetensors

    @classmethod
    def open(cls, path: Path) -> WeightFile:
        """Map and check a file, or all safetensors files of a folder.

        Raises WeightsError naming the file, and the tensor if it is one's fault; OSError when it
        cannot be read.
        """
        files = weight_files(path)
        if files[0].suffix == ".safetensors":
            return cls._open_safetensors(files)
        contents = _map(path)
        if contents[:4].tobytes() == MAGIC:
            return cls._open_gguf(contents, str(path))
        raise WeightsError(f"{path}: neither a GGUF nor a .safetensors file")

    @classmethod
    def _open_gguf(cls, contents: Bytes, file: str) -> WeightFile:
        gguf = read_gguf(contents, file)
        config = config_from_gguf(gguf.metadata, gguf.tensors, file)
        tensors = {n: t for n, t in gguf.tensors.items() if not _NOT_WEIGHTS.fullmatch(n)}
        check_shapes(tensors, expected_shapes(config), file)
        if config.architecture == "llama":
            return cls(config, _HalfSplit(tensors, config.head_dim), is_safetensors=False)
        return cls(config, tensors, is_safetensors=False)

    @classmethod
    def _open_safetensors(cls, files: Sequence[Path]) -> WeightFile:
        tensors: dict[str, Tensor] = {}
        for file in files:
            for name, tensor in _safetensors(file).items():
                if name in tensors:
                    raise WeightsError(f"{file}: tensor {name!r} is in another file too")
                tensors[name] = tensor
        path = files[0]
        config_path = path.with_name("config.json")
        with config_path.open("rb") as stream:
            raw = stream.read(_MAX_CONFIG_JSON + 1)
        if len(raw) > _MAX_CONFIG_JSON:
            raise WeightsError(f"{config_path}: more than {_MAX_CONFIG_JSON} bytes")
        values = read_json_object(raw, str(config_path))
        config = config_from_json(values, tensors, str(config_path))
        if config.tied_embeddings:
            tensors.pop("output.weight", None)  # some exporters write the embedding twice
        check_shapes(
            tensors, expected_shapes(config), str(path if len(files) == 1 else path.parent)
        )
        return cls(config, tensors, is_safetensors=True)

    def __enter__(self) -> WeightFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file; tensors taken from it before stay valid."""
        self.tensors = {}


def content_files(path: Path) -> list[Path]:
    """All files that decide what a model computes. Raises WeightsError."""
    files = weight_files(path)
    is_described = files[0].suffix == ".safetensors"
    return [*files, files[0].with_name("config.json")] if is_described else files


def weight_files(path: Path) -> list[Path]:
    """The file itself, or the safetensors files of a folder, by name. Raises WeightsError."""
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("*.safetensors"))
    if not 1 <= len(files) <= _MAX_FILES:
        raise WeightsError(f"{path}: {len(files)} .safetensors files, 1 to {_MAX_FILES} are read")
    return files


def _safetensors(file: Path) -> dict[str, Tensor]:
    """A file's tensors under GGUF names."""
    read = read_safetensors(_map(file), str(file))
    renamed = {
        _gguf_name(name, str(file)): tensor
        for name, tensor in read.items()
        if not _NOT_WEIGHTS.fullmatch(name)
    }
    return {
        name: Tensor(name, tensor.format, tensor.shape, tensor.data)
        for name, tensor in renamed.items()
    }


def _map(path: Path) -> Bytes:
    with path.open("rb") as stream:
        try:
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:  # what mmap says to a length of zero
            raise WeightsError(f"{path}: the file is empty") from None
    return np.frombuffer(mapped, np.uint8)


class _HalfSplit(Mapping[str, Tensor]):
    """Tensors of a Llama in GGUF; Q and K are put in half-split order when they are taken.

    The converter to GGUF stores a head's rotary pair (i, i + head_dim / 2) as (2 i, 2 i + 1).
    """

    _INTERLEAVED = re.compile(r"blk\.\d+\.attn_[qk]\.(weight|bias)")

    def __init__(self, tensors: Mapping[str, Tensor], head_dim: int) -> None:
        self._tensors = tensors
        self._head_dim = head_dim

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._tensors[name]
        if not self._INTERLEAVED.fullmatch(name):
            return tensor
        bytes_per_output = len(tensor.data) // tensor.shape[0]
        pairs = tensor.data.reshape(-1, self._head_dim // 2, 2, bytes_per_output)
        halves = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(-1)
        return Tensor(name, tensor.format, tensor.shape, halves)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


# -- names -------------------------------------------------------------------------------------

_HUGGING_FACE_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_HUGGING_FACE_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_HUGGING_FACE_LAYER = re.compile(r"model\.layers\.(\d{1,4})\.(.+)")


def _gguf_name(name: str, file: str) -> str:
    """The GGUF name of a Hugging Face tensor. Raises WeightsError on an unknown one."""
    stem, _, kind = name.rpartition(".")
    if layer := _HUGGING_FACE_LAYER.fullmatch(stem):
        if part := _HUGGING_FACE_LAYER_NAMES.get(layer[2]):
            return f"blk.{int(layer[1])}.{part}.{kind}"
    elif part := _HUGGING_FACE_NAMES.get(stem):
        return f"{part}.{kind}"
    raise WeightsError(f"{file}: tensor {name!r} has no place in a model that is supported")


# -- shapes ------------------------------------------------------------------------------------


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of such a model."""
    hidden, wide = config.hidden_size, config.intermediate_size
    queries = config.num_heads * config.head_dim
    keys = config.num_kv_heads * config.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (hidden,),
        "attn_q.weight": (queries, hidden),
        "attn_k.weight": (keys, hidden),
        "attn_v.weight": (keys, hidden),
        "attn_output.weight": (hidden, queries),
        "ffn_norm.weight": (hidden,),
        "ffn_gate.weight": (wide, hidden),
        "ffn_up.weight": (wide, hidden),
        "ffn_down.weight": (hidden, wide),
    }
    if config.attention_bias:
        layer |= {"attn_q.bias": (queries,), "attn_k.bias": (keys,), "attn_v.bias": (keys,)}
    if config.qk_norm:
        layer |= {
            "attn_q_norm.weight": (config.head_dim,),
            "attn_k_norm.weight": (config.head_dim,),
        }
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (config.vocab_size, hidden),
        "output_norm.weight": (hidden,),
    }
    if not config.tied_embeddings:
        shapes["output.weight"] = (config.vocab_size, hidden)
    for index in range(config.num_layers):
        shapes |= {f"blk.{index}.{name}": shape for name, shape in layer.items()}
    return shapes
