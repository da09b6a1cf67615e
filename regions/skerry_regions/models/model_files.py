"""What an installed model consists of, as its readers see it.

`ModelMetadata` is what the edge and a node must know before they open the large files; it is
written once, at installation, as `model.json` beside the tokenizer.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

from msgspec import Struct

TokenForm = Literal["byte_level", "byte_fallback", "one_way"]
"""How a token of `tokenizer.json` stands for bytes: GPT-2's alphabet, or text with `<0x0A>`.
Tokens of encoders are never turned back."""


class ModelMetadata(Struct, frozen=True, kw_only=True):
    """Facts of one model's files. Token ids are None where the model has no such token."""

    architecture: str  # "llama", "qwen2", …, as the files name it
    context_length: int  # tokens the model was trained for
    vocab_size: int
    token_form: TokenForm
    strips_space: bool  # decoding drops the one space that the first word starts with
    chat_template: str | None  # Jinja source
    bos_id: int | None
    eos_id: int | None
    pad_id: int | None
    unk_id: int | None
    add_bos: bool  # plain text starts with BOS
    stop_token_ids: tuple[int, ...]  # end of text and end of turn, ascending
    tokenizer_digest: str  # BLAKE2b-128 of tokenizer.json, hex
    template_digest: str  # BLAKE2b-128 of the chat template, hex; of nothing when there is none
    weights_digest: str  # BLAKE2b-128 of the files' SHA-256 in catalog order, hex


class ModelFiles(ModelMetadata, frozen=True, kw_only=True):
    """An installed model whose files were checked when this was made."""

    id: str
    directory: Path  # holds tokenizer.json and tokenizer_config.json, as transformers reads them
    weights: Path  # the GGUF file, or the directory of the safetensors files
    tokenizer: Path  # tokenizer.json, in the format of HF `tokenizers`

    @property
    def model_key(self) -> bytes:
        """Return what names weights and tokenizer in the digests of KV blocks."""
        return bytes.fromhex(self.weights_digest + self.tokenizer_digest)


def digest(data: bytes) -> str:
    """Hash by BLAKE2b-128, in hex."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()
