"""Token ids of prompts' beginnings, so that a long shared prefix is tokenised once.

A prompt is cut where a control token stands, `<|im_start|>` for instance: tokenizers cut there
themselves before they do anything else, so the ids of the parts, one after the other, are the ids
of the whole. Parts are remembered by tenant.

    system … | user … | assistant … | user …      parts: each until it has `PART_CHARS` or more
    └─ known ─┘└─ known ──────────┘└ tokenised ┘
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Tokenizer

from skerry_edge.text.tenant_memory import TenantMemory

if TYPE_CHECKING:
    from skerry_edge.text.model import TextModel

PART_CHARS = 1024  # about a quarter of a millisecond of tokenising
MAX_BYTES = 64 << 20  # of all tenants
MAX_TENANT_BYTES = 8 << 20  # two million tokens


class Borders:
    """Where a tokenizer cuts every text, whatever stands around."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        # Others are looked for after normalisation, in what these leave over.
        tokens: list[AddedToken] = [
            token for token in tokenizer.get_added_tokens_decoder().values() if not token.normalized
        ]
        longest_first = sorted((token.content for token in tokens), key=len, reverse=True)
        pattern = "|".join(map(re.escape, longest_first))
        # Whether these stand for themselves depends on their neighbours.
        is_free = any(token.single_word for token in tokens)
        self._tokens = re.compile(pattern if pattern and not is_free else r"(?!)")
        self._takes_space = {token.content for token in tokens if token.lstrip}

    def cut(self, text: str, least: int) -> Iterator[str]:
        """Yield the parts of a text: each has `least` characters or more, except the last."""
        start = 0
        for token in self._tokens.finditer(text):
            if token.start() - start >= least and token[0] not in self._takes_space:
                yield text[start : token.start()]
                start = token.start()
        yield text[start:]


class PrefixMemory:
    """What an edge remembers of its tenants' prompts. Any thread may use it."""

    def __init__(
        self,
        *,
        part_chars: int = PART_CHARS,
        max_bytes: int = MAX_BYTES,
        max_tenant_bytes: int = MAX_TENANT_BYTES,
    ) -> None:
        self._part_chars = part_chars
        self.parts: TenantMemory[array[int]] = TenantMemory(
            max_bytes=max_bytes, max_tenant_bytes=max_tenant_bytes
        )

    def encode(self, text: TextModel, tenant: str, prompt: str) -> list[int]:
        """Return the ids of `text.encode(prompt)`, computed as far as they are not remembered.

        Raises as `encode` does; a prompt that is too long is given up where that shows.
        """
        *parts, rest = text.borders.cut(prompt, self._part_chars)
        ids: list[int] = []
        for part in parts:
            text.check_length(len(ids))
            digest = blake2b(part.encode("utf-8", "surrogatepass"), digest_size=16)
            digest.update(text.build.encode())
            name = digest.digest()
            known = self.parts.recall(tenant, name)
            if known is None:
                known = array("i", text.encode_part(part))
                self.parts.remember(tenant, name, known, len(known) * known.itemsize)
            ids += known
        text.check_length(len(ids))
        return ids + text.encode_part(rest)
