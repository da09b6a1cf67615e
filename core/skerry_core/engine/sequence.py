"""A request on its way through the engine."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as ListOf
from typing import TYPE_CHECKING

import numpy as np

from skerry_core.batch import Int32
from skerry_core.blocks import Digest
from skerry_core.config import BLOCK_SIZE
from skerry_core.device_pages import DevicePages
from skerry_core.engine.drafts.prompt_lookup import MIN_MATCH
from skerry_core.names import BlockNames
from skerry_core.reasoning_budget import ReasoningBudget
from skerry_core.request import PRIORITIES, KVBlock, PinUsage, Request, RequestRejected

if TYPE_CHECKING:
    from skerry_core.grammar.matcher import Matcher

FIRST_CHOICE_SECONDS = 0.005  # what a choice near the end of a grammar takes, until it is known

# Of the filter of runs of `MIN_MATCH` tokens: bytes at least, and per token.
_LEAST_SEEN, _SEEN_PER_TOKEN = 1 << 16, 8
_FACTORS = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)  # odd, of a multiplicative hash
_HASH_SHIFT = 7


class Sequence:
    """The request, its tokens so far, and how many of them have their KV in blocks.

        prompt │ output
        ───────┴──────────────┬──────────┐
        computed (KV in blocks) remaining │   remaining >= 1 while it lives: the last token always
        ──────────────────────┴──────────┘   runs, and makes the next one

    Tokens count as computed from the launch of their step on: none remains while the next one is
    made. A waiting sequence holds no block. Token ids of an earlier attempt
    (`Request.output_ids`) are output from the start. Once it has ended it says what it cost: it is
    an `EngineUsage`.
    """

    __slots__ = (
        "_seen", "_tokens", "arrival", "arrival_time", "blocks", "budget", "cached_tokens",
        "choice_seconds", "decode_seconds", "decode_steps", "decode_tokens", "digests", "end_time",
        "expected", "export_pages", "exports_kv", "has_adjustments", "has_penalties", "id",
        "is_exporting", "is_recurring", "kv", "matcher", "num_computed", "num_exported",
        "num_prompt_logprobs", "num_tokens", "pinned", "preempted_at", "preemptions",
        "prefill_seconds", "prefill_steps", "prefill_tokens", "priority", "private_blocks",
        "prompt_tokens", "request", "sampling", "slot", "start_time", "tail", "tenant",
        "whole_max_tokens",
    )  # fmt: skip

    def __init__(
        self,
        id: str,
        request: Request,
        *,
        matcher: Matcher | None = None,
        budget: ReasoningBudget | None = None,
        kv: ListOf[KVBlock] = (),
        exports_kv: bool = False,
        export_pages: Callable[[], DevicePages | None] | None = None,
        private_blocks: bool = False,
        whole_max_tokens: int | None = None,
    ) -> None:
        """`id` is unique among those in the engine. `matcher` is the grammar that the output must
        follow: the sequence's own from now on, it has taken none, or the first, of `output_ids`.
        `budget` bounds its reasoning and has taken all of them.

        `kv` brings blocks that another engine computed: they become prefix cache. `exports_kv` has
        the prompt's blocks handed out, as they are computed; `export_pages` is called at each
        export for pages in which they may stay on the device, on the engine's thread.
        `private_blocks`: even blocks of the operator's prompts are named under the request's own
        key. `whole_max_tokens` are those of an output of which this makes only the first.

        Raises RequestRejected for what is no token id.
        """
        self.id, self.request = id, request
        self.sampling = request.sampling
        self.tenant = request.tenant
        # Whether a token's choice depends on which came before, and whether its logits are changed.
        penalties = (self.sampling.frequency_penalty, self.sampling.presence_penalty)
        self.has_penalties = self.sampling.repetition_penalty != 1.0 or any(penalties)
        forbids_stops = self.sampling.min_tokens > 0 and bool(self.sampling.stop_token_ids)
        is_biased = bool(self.sampling.logit_bias) or forbids_stops
        self.has_adjustments = self.has_penalties or is_biased
        self.priority = PRIORITIES[request.priority]
        self.matcher = matcher
        self.budget = budget
        self.kv = kv  # until it is adopted
        self.exports_kv = self.is_exporting = exports_kv  # ever; as long as blocks are to follow
        self.export_pages = export_pages
        self.private_blocks = private_blocks
        self.whole_max_tokens = whole_max_tokens

        self.arrival = -1  # 0, 1, …: the order of requests
        self.arrival_time = 0.0  # seconds of the engine's clock
        self.start_time: float | None = None  # when it first got a place
        self.end_time = 0.0
        self.choice_seconds = FIRST_CHOICE_SECONDS  # of its last token under a grammar
        self.prefill_seconds = self.decode_seconds = 0.0
        self.prefill_tokens = self.prefill_steps = self.preemptions = 0
        self.decode_tokens = self.decode_steps = 0

        self.prompt_tokens = len(request.prompt_ids)
        self.num_tokens = self.prompt_tokens + len(request.output_ids)
        self._tokens = np.empty(self.num_tokens, np.int32)
        try:
            self._tokens[: self.prompt_tokens] = request.prompt_ids
            self._tokens[self.prompt_tokens :] = request.output_ids
        except OverflowError:
            raise RequestRejected("a token id has more than 32 bits") from None
        self._seen: bytearray | None = None  # marks of runs of its tokens, see `is_recurring`
        # Whether its last tokens stood in it before. By a filter: never missed, rarely wrong.
        self.is_recurring = False

        self.slot = -1  # its row in the engine's arrays; -1: waiting
        self.blocks: list[int] = []
        self.digests: list[Digest] = []  # of its first full blocks, see `extend_digests`
        self.num_computed = 0
        self.preempted_at = 0  # how many steps had been launched by then
        # While the next step is planned: the sample of the one before that will be its last token,
        # whose place is taken already. -1: all its tokens are known.
        self.expected = -1
        self.num_exported = 0  # blocks handed out, see `exports_kv`
        self.tail: KVBlock | None = None  # an open block that came along, not yet in the pool
        self.cached_tokens = 0  # of the prompt, when it first got a place
        self.pinned: PinUsage | None = None  # as its request wants it, once its prompt is computed
        # Prompt logprobs made so far, or by steps under way, the first token's absence included. A
        # transcript follows them, so a resumed request got them all.
        wants_prompt_logprobs = request.prompt_logprobs is not None and not request.output_ids
        self.num_prompt_logprobs = 1 if wants_prompt_logprobs else self.prompt_tokens

    def arrive(self, number: int, now: float, *, watches_runs: bool = False) -> None:
        """Enter the engine: take the room that its output needs. With `watches_runs` it notices
        when it repeats itself (see `is_recurring`)."""
        self.arrival, self.arrival_time = number, now
        capacity = max(self.num_tokens, self.prompt_tokens + self.sampling.max_tokens)
        known, self._tokens = self._tokens, np.empty(capacity, np.int32)
        self._tokens[: self.num_tokens] = known
        if watches_runs:
            self._seen = _seen_runs(known, capacity)

    def end(self, now: float) -> None:
        """Leave the engine; `now` is in seconds of the engine's clock."""
        self.forget_expected()
        self.end_time = now

    # --- what it cost ----------------------------------------------------------------------------

    @property
    def queue_seconds(self) -> float:
        start = self.end_time if self.start_time is None else self.start_time
        return start - self.arrival_time

    @property
    def seconds(self) -> float:
        return self.end_time - self.arrival_time

    # --- its tokens ------------------------------------------------------------------------------

    @property
    def tokens(self) -> Int32:
        """Return a view of prompt and output, i32[num_tokens]."""
        return self._tokens[: self.num_tokens]

    def span(self, start: int, end: int) -> Int32:
        """Return a view of tokens, and of those drafted after them."""
        return self._tokens[start:end]

    @property
    def output_tokens(self) -> int:
        return self.num_tokens - self.prompt_tokens

    @property
    def remaining(self) -> int:
        """Return the number of known tokens whose KV is not computed."""
        return self.num_tokens - self.num_computed

    @property
    def is_decoding(self) -> bool:
        """Return whether only the token that it made last is left to run."""
        return self.num_tokens - self.num_computed == 1 and self.num_tokens > self.prompt_tokens

    @property
    def is_stream(self) -> bool:
        """Return whether it decodes: its last token is left to run, or the next one is made."""
        return self.remaining <= 1 and self.num_computed >= self.prompt_tokens

    @property
    def is_complete(self) -> bool:
        """Return whether no token may follow the last one: it ends as soon as that is known."""
        return self.output_tokens >= self.sampling.max_tokens

    @property
    def awaits_mask(self) -> bool:
        """Return whether its next token cannot be chosen yet."""
        return self.matcher is not None and self.matcher.mask is None

    @property
    def may_match_prefix(self) -> bool:
        """Return whether blocks may be reused: prompt logprobs need every prompt token to run."""
        return self.num_prompt_logprobs >= self.prompt_tokens

    def tail_after(self, num_matched: int) -> int:
        """Return how many tokens its tail adds to cached ones: 0 when it does not follow them."""
        tail = self.tail
        if tail is None or num_matched != self.prompt_tokens // BLOCK_SIZE * BLOCK_SIZE:
            return 0
        return min(tail.num_tokens, self.num_tokens - 1 - num_matched)

    def num_targets(self, num_tokens: int) -> int:
        """Return of how many prompt tokens its next `num_tokens` tokens give the first logprobs."""
        end = min(self.num_computed + num_tokens + 1, self.prompt_tokens)
        return max(0, end - self.num_prompt_logprobs)

    def append(self, token_id: int) -> None:
        """Append its next token: the one that is expected, if one is."""
        self.forget_expected()
        self._tokens[self.num_tokens] = token_id
        self.num_tokens += 1
        if self._seen is not None:
            self.is_recurring = self._note_run(self._seen)

    def expect(self, sample: int) -> None:
        """Go on as if the next token were known; the step launched last makes it."""
        self.append(0)
        self.expected = sample

    def forget_expected(self) -> None:
        """Drop the token that is not known yet."""
        if self.expected >= 0:
            self.expected = -1
            self.num_tokens -= 1

    def draft(self, token_ids: Int32) -> None:
        """Put tokens after its own that may turn out to be the next ones; fewer than may follow."""
        self._tokens[self.num_tokens : self.num_tokens + len(token_ids)] = token_ids

    def _note_run(self, seen: bytearray) -> bool:
        """Mark its last `MIN_MATCH` tokens; return whether they stood in it before, most likely."""
        if self.num_tokens < MIN_MATCH:
            return False
        first, second, third = self._tokens[self.num_tokens - MIN_MATCH : self.num_tokens].tolist()
        run = first * _FACTORS[0] + second * _FACTORS[1] + third * _FACTORS[2]
        place = (run >> _HASH_SHIFT) & (len(seen) - 1)
        was_seen = bool(seen[place])
        seen[place] = 1
        return was_seen

    def prefix_digests(self, names: BlockNames) -> list[Digest]:
        """Return the names of all blocks that may be found in a cache for it: none when every token
        has to run, and never that of its last token's block."""
        if not self.may_match_prefix:
            return []
        most = (self.num_tokens - 1) // BLOCK_SIZE
        self.extend_digests(most, names)
        return self.digests[:most]

    def extend_digests(self, num_blocks: int, names: BlockNames) -> None:
        """Make `digests` at least `num_blocks` long; that many blocks of tokens must be known."""
        known = len(self.digests)
        if num_blocks > known:
            tokens = self._tokens[known * BLOCK_SIZE : num_blocks * BLOCK_SIZE]
            key, private = self.request.cache_key, self.private_blocks
            names.extend(self.digests, tokens, key, private=private)


def _seen_runs(tokens: Int32, capacity: int) -> bytearray:
    """Return marks of all runs of `MIN_MATCH` tokens of i32[n]; their number is a power of two."""
    size = max(_LEAST_SEEN, 1 << (_SEEN_PER_TOKEN * capacity - 1).bit_length())
    seen = np.zeros(size, np.uint8)
    wide = tokens.astype(np.uint64)
    count = max(0, len(wide) - MIN_MATCH + 1)
    runs = sum(wide[i : i + count] * np.uint64(factor) for i, factor in enumerate(_FACTORS))
    seen[(runs >> np.uint64(_HASH_SHIFT)) & np.uint64(size - 1)] = 1
    return bytearray(seen)
