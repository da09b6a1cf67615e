"""GGUF files of a few hundred bytes of vocabulary, small enough to check by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import quantize

TEMPLATE = "{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}"


def write_bpe(path: Path, *, pre: str = "smollm", **fields: Any) -> Path:
    """Byte-level BPE: `</s>` is 0, `<s>` 1, printable ASCII and the space (Ġ) follow, then the
    merges `ab` and `Ġab`. `fields` add or replace metadata."""
    return _finish(_bpe(path, pre, fields), path)


def _bpe(path: Path, pre: str, fields: dict[str, Any], architecture: str = "llama") -> GGUFWriter:
    letters = [chr(code) for code in range(0x21, 0x7F)] + ["Ġ", "Ċ"]
    tokens = ["</s>", "<s>", *letters, "ab", "Ġab"]
    writer = _writer(path, len(tokens), fields, architecture)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL] * 2 + [TokenType.NORMAL] * (len(tokens) - 2))
    writer.add_token_merges(["a b", "Ġ ab"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    return writer


def write_openable(
    path: Path, architecture: str = "llama", format_: str = "F32", **stated: int
) -> Path:
    """The model of `write_bpe` with the tensors of one small Llama layer, so that an engine opens
    it; in formats that gguf-py cannot write zeros. `stated` is what its header has beside that."""
    kind = GGMLQuantizationType[format_]
    hidden = 256 if format_.endswith("_K") else 32
    fields = {
        f"{architecture}__{key}": value
        for key, value in {
            "block_count": 1,
            "embedding_length": hidden,
            "feed_forward_length": 2 * hidden,
            "attention__head_count": 2,
            **stated,
        }.items()
    }
    writer = _bpe(path, "smollm", fields, architecture)
    writer.add_layer_norm_rms_eps(1e-5)
    shapes = {"token_embd": (100, hidden), "blk.0.ffn_gate": (2 * hidden, hidden)}
    shapes |= {"blk.0.ffn_up": (2 * hidden, hidden), "blk.0.ffn_down": (hidden, 2 * hidden)}
    shapes |= {f"blk.0.attn_{name}": (hidden, hidden) for name in ("q", "k", "v", "output")}
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        if format_.endswith("_K"):
            block_size, block_bytes = GGML_QUANT_SIZES[kind]
            values = np.zeros((shape[0], shape[1] // block_size * block_bytes), np.uint8)
        else:
            values = quantize(rng.normal(size=shape).astype(np.float32) / 6, kind)
        writer.add_tensor(f"{name}.weight", values, raw_dtype=kind)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(hidden, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_sentencepiece(path: Path) -> Path:
    """SentencePiece BPE: `<unk> <s> </s>`, 256 byte tokens, then pieces with scores as ranks."""
    pieces = ["▁", "a", "b", "ab", "▁ab", "ba"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    writer = _writer(path, len(tokens), {})
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + [-100.0, -100.0, -100.0, -2.0, -3.0, -1.0])
    writer.add_token_types(
        [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
        + [TokenType.BYTE] * 256
        + [TokenType.NORMAL] * len(pieces)
    )
    return _finish(writer, path)


def _writer(
    path: Path, vocab_size: int, fields: dict[str, Any], architecture: str = "llama"
) -> GGUFWriter:
    writer = GGUFWriter(path, architecture)
    writer.add_name("Tiny")
    writer.add_context_length(64)
    writer.add_vocab_size(vocab_size)
    writer.add_chat_template(TEMPLATE)
    for key, value in fields.items():
        name = key.replace("__", ".")
        if isinstance(value, float):
            writer.add_float32(name, value)
        else:
            writer.add_uint32(name, value)
    return writer


def _finish(writer: GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path
