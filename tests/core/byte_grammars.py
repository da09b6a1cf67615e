"""Grammars over the toy model's vocabulary: 256 bytes, a token that ends the text, and a mark."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from skerry_core.grammar.compiler import GrammarCompiler
from skerry_core.grammar.lowering import GrammarKind, lower
from skerry_core.grammar.matcher import CompiledGrammar

VOCAB = 257
END = 256
MARK = 257  # a control token, as some models have it before calls of tools; beyond `VOCAB`


def write_byte_tokenizer(path: Path, *marks: str) -> Path:
    """A `tokenizer.json` whose tokens 0 to 255 are bytes, 256 is `<end>`, and control tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    byte_of = {letter: _byte(letter, alphabet) for letter in alphabet}
    tokenizer = Tokenizer(models.BPE(vocab=byte_of, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>", *marks])
    tokenizer.save(str(path))
    return path


def _byte(letter: str, alphabet: list[str]) -> int:
    """The byte of one of GPT-2's letters: printable ones stand for themselves, others in order."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    if ord(letter) < 256:
        return ord(letter)
    return [byte for byte in range(256) if byte not in plain][ord(letter) - 256]


@cache
def compiler() -> GrammarCompiler:
    with TemporaryDirectory() as folder:
        tokenizer = write_byte_tokenizer(Path(folder) / "tokenizer.json", "[MARK]")
        return GrammarCompiler(tokenizer, vocab_size=VOCAB + 1, stop_token_ids=(END,))


def compiled(kind: GrammarKind, source: str) -> CompiledGrammar:
    return compiler().compile(lower(kind, source))


def text(token_ids: Iterable[int]) -> str:
    return bytes(each for each in token_ids if each < 256).decode()
