"""Token ids of prompts' beginnings, so that a long shared prefix is tokenised once.

A prompt is cut where a control token stands, `<|im_start|>` for instance: tokenizers cut there
themselves before they do anything else, so the ids of the parts, one after the other, are the ids
of the whole. Parts are remembered by tenant: how long a prompt takes reveals nothing of what others
sent.

    system … | user … | assistant … | user …      parts: each until it has `PART_CHARS` or more
    └─ known ─┘└─ known ──────────┘└ tokenised ┘
"""

from __future__ import annotations

import re
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Tokenizer

if TYPE_CHECKING:
    from skerry_edge.text.model import TextModel

PART_CHARS = 1024  # about a quarter of a millisecond of tokenising
MAX_BYTES = 64 << 20  # of all tenants
MAX_TENANT_BYTES = 8 << 20  # two million tokens
ENTRY_BYTES = 200  # what an entry takes besides its ids


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
        self._max_bytes = max_bytes
        self._max_tenant_bytes = max_tenant_bytes
        self._lock = threading.Lock()
        self._tenants: OrderedDict[str, _Parts] = OrderedDict()  # the one that called last, last
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def encode(self, text: TextModel, tenant: str, prompt: str) -> list[int]:
        """Return the ids of `text.encode(prompt)`, computed as far as they are not remembered.

        Raises as `encode` does; a prompt that is too long is given up where that shows.
        """
        *parts, rest = text.borders.cut(prompt, self._part_chars)
        ids: list[int] = []
        for part in parts:
            text.check_length(len(ids))
            name = blake2b(part.encode("utf-8", "surrogatepass"), digest_size=16)
            name.update(text.build.encode())
            known = self._recall(tenant, name.digest())
            if known is None:
                known = array("i", text.encode_part(part))
                self._remember(tenant, name.digest(), known)
            ids += known
        text.check_length(len(ids))
        return ids + text.encode_part(rest)

    def _recall(self, tenant: str, name: bytes) -> array[int] | None:
        with self._lock:
            parts = self._tenants.get(tenant)
            if parts is None:
                return None
            self._tenants.move_to_end(tenant)
            return parts.recall(name)

    def _remember(self, tenant: str, name: bytes, ids: array[int]) -> None:
        with self._lock:
            parts = self._tenants.setdefault(tenant, _Parts())
            self._num_bytes += parts.remember(name, ids)
            while parts.num_bytes > self._max_tenant_bytes:
                self._forget_oldest(tenant)
            while self._num_bytes > self._max_bytes:
                self._forget_oldest(next(iter(self._tenants)))

    def _forget_oldest(self, tenant: str) -> None:
        """Forget the oldest of a tenant's parts; a tenant without parts is forgotten as well."""
        parts = self._tenants[tenant]
        self._num_bytes -= parts.forget_oldest()
        if not parts.num_bytes:
            del self._tenants[tenant]


class _Parts:
    """One tenant's parts by name, the most recently used last."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._known: OrderedDict[bytes, array[int]] = OrderedDict()

    def recall(self, name: bytes) -> array[int] | None:
        ids = self._known.get(name)
        if ids is not None:
            self._known.move_to_end(name)
        return ids

    def remember(self, name: bytes, ids: array[int]) -> int:
        """Return bytes that it takes; none when another thread was faster."""
        if name in self._known:
            return 0
        self._known[name] = ids
        self.num_bytes += _size(ids)
        return _size(ids)

    def forget_oldest(self) -> int:
        """Return bytes that it gives back."""
        _, ids = self._known.popitem(last=False)
        self.num_bytes -= _size(ids)
        return _size(ids)


def _size(ids: array[int]) -> int:
    return ENTRY_BYTES + len(ids) * ids.itemsize
