"""GGUF files of a few hundred bytes of vocabulary, small enough to check by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gguf import GGUFWriter, TokenType

TEMPLATE = "{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}"


def write_bpe(path: Path, *, pre: str = "smollm", **fields: Any) -> Path:
    """Byte-level BPE: `</s>` is 0, `<s>` 1, printable ASCII and the space (Ġ) follow, then the
    merges `ab` and `Ġab`. `fields` add or replace metadata."""
    letters = [chr(code) for code in range(0x21, 0x7F)] + ["Ġ", "Ċ"]
    tokens = ["</s>", "<s>", *letters, "ab", "Ġab"]
    writer = _writer(path, len(tokens), fields)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL] * 2 + [TokenType.NORMAL] * (len(tokens) - 2))
    writer.add_token_merges(["a b", "Ġ ab"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    return _finish(writer, path)


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


def _writer(path: Path, vocab_size: int, fields: dict[str, Any]) -> GGUFWriter:
    writer = GGUFWriter(path, "llama")
    writer.add_name("Tiny")
    writer.add_context_length(64)
    writer.add_vocab_size(vocab_size)
    writer.add_chat_template(TEMPLATE)
    for key, value in fields.items():
        writer.add_uint32(key.replace("__", "."), value)
    return writer


def _finish(writer: GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path
