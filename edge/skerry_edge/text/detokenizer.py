"""Token ids to text, a step at a time, never splitting a UTF-8 character."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable
from typing import Final

from tokenizers import AddedToken, Tokenizer

from skerry_regions.models.model_files import TokenForm

_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-F]{2})>")


def _gpt2_alphabet() -> dict[str, int]:
    """Map GPT-2's printable stand-ins to bytes (openai/gpt-2, encoder.py: bytes_to_unicode)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }


class TokenBytes:
    """The bytes each token stands for, looked up once per token. Not thread-safe per entry, but
    two threads can only compute the same value twice."""

    def __init__(self, tokenizer: Tokenizer, form: TokenForm) -> None:
        self._tokenizer = tokenizer
        self._form = form
        self._alphabet = _gpt2_alphabet()
        self._added: dict[int, AddedToken] = tokenizer.get_added_tokens_decoder()
        self._known: dict[int, bytes] = {}
        self._visible: dict[int, bytes] = {}

    def of(self, token_id: int) -> bytes:
        """Return bytes of a token, control tokens as they are written; none for an id without a
        token."""
        data = self._known.get(token_id)
        if data is None:
            data = self._known[token_id] = self._compute(token_id)
        return data

    def visible(self, token_id: int) -> bytes:
        """Return what `of` does, but nothing for control tokens."""
        data = self._visible.get(token_id)
        if data is None:
            added = self._added.get(token_id)
            hidden = added is not None and added.special
            data = self._visible[token_id] = b"" if hidden else self.of(token_id)
        return data

    def _compute(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].content.encode()
        text = self._tokenizer.id_to_token(token_id) if token_id >= 0 else None
        if text is None:
            return b""
        if self._form == "byte_level":
            return bytes(self._alphabet[character] for character in text)
        if match := _BYTE_TOKEN.fullmatch(text):
            return bytes.fromhex(match[1])
        return text.replace("▁", " ").encode()


class Detokenizer:
    """Text of one stream of output tokens. Control tokens are left out.

    Bytes that are not UTF-8 become U+FFFD, one per maximal invalid piece as Unicode recommends, so
    that the concatenation of all pieces equals the decoding of all bytes at once.
    """

    def __init__(self, tokens: TokenBytes, *, strip_space: bool) -> None:
        """`strip_space`: drop one space at the very start, which stands for no space in the text
        (SentencePiece writes it before the first word)."""
        self._tokens = tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip_space = strip_space

    def push(self, token_ids: Iterable[int]) -> str:
        """Return the text that is certain after these tokens."""
        return self._decode(b"".join(map(self._tokens.visible, token_ids)), final=False)

    def flush(self) -> str:
        """Return an unfinished character as U+FFFD, at the end. It may then be used again."""
        return self._decode(b"", final=True)

    def _decode(self, data: bytes, *, final: bool) -> str:
        if self._strip_space and data:
            self._strip_space = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data, final)
