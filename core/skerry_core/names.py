"""Names of a sequence's blocks: in the scope of its tenant, or in the one that all tenants share.

A block is named in the shared scope when it and all before it are the beginning of a prompt that
the operator declared (`share`): a system prompt, say. What follows it is named under the tenant's
key again, chained to the shared name. So tenants find the operator's prompts computed, and learn
nothing of each other: which prompts are shared is the operator's word, never a matter of traffic.
"""

from __future__ import annotations

from skerry_core.batch import Int32
from skerry_core.blocks import Digest, chain_digests, root_digest, tail_digest
from skerry_core.config import BLOCK_SIZE

SHARED_KEY = b""  # the cache key of requests that belong to no tenant


class BlockNames:
    """Names blocks of one model. From any thread, except `share`: before the first request."""

    def __init__(self, model_key: bytes) -> None:
        self._model_key = model_key
        self._shared: set[Digest] = set()

    def share(self, token_ids: Int32) -> int:
        """Declare a prompt i32[n] as the operator's; return how many full blocks it has."""
        digests = chain_digests(self._root(SHARED_KEY), token_ids, SHARED_KEY)
        self._shared.update(digests)
        return len(digests)

    def extend(self, digests: list[Digest], token_ids: Int32, key: bytes, *, private: bool) -> None:
        """Append the names of the full blocks of `token_ids` i32[n], which follow `digests`.

        `private` blocks are the tenant's own, whatever they hold.
        """
        if not private and self._shared and (not digests or digests[-1] in self._shared):
            start = len(digests)
            self._extend_shared(digests, token_ids)
            token_ids = token_ids[(len(digests) - start) * BLOCK_SIZE :]
        parent = digests[-1] if digests else self._root(key)
        digests += chain_digests(parent, token_ids, key)

    def of(self, token_ids: Int32, key: bytes, *, private: bool) -> list[Digest]:
        """Return names of the full blocks of a sequence i32[n]."""
        digests: list[Digest] = []
        self.extend(digests, token_ids, key, private=private)
        return digests

    def of_prompt(self, token_ids: Int32, key: bytes, *, private: bool) -> list[Digest]:
        """Return names of all blocks of a prompt i32[n], the open one at its end included."""
        digests = self.of(token_ids, key, private=private)
        rest = token_ids[len(digests) * BLOCK_SIZE :]
        if len(rest):
            digests.append(tail_digest(digests[-1] if digests else self._root(key), rest, key))
        return digests

    def _root(self, key: bytes) -> Digest:
        return root_digest(self._model_key, key)

    def _extend_shared(self, digests: list[Digest], token_ids: Int32) -> None:
        """Append names as long as they are shared ones."""
        parent = digests[-1] if digests else self._root(SHARED_KEY)
        for start in range(0, len(token_ids) - BLOCK_SIZE + 1, BLOCK_SIZE):
            block = token_ids[start : start + BLOCK_SIZE]
            [parent] = chain_digests(parent, block, SHARED_KEY)
            if parent not in self._shared:
                return
            digests.append(parent)
