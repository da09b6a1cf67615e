"""A request on its way through the engine."""

from __future__ import annotations

import numpy as np

from skerry_core.blocks import Digest
from skerry_core.config import BLOCK_SIZE
from skerry_core.engine.acceptance import Acceptance
from skerry_core.names import BlockNames
from skerry_core.request import KVBlock, Request, Usage

FIRST_CHOICE_SECONDS = 0.005  # what a choice near the end of a grammar takes, until it is known


class Sequence:
    """The request, its tokens so far, and how many of them have their KV in blocks.

        prompt │ output
        ───────┴──────────────┬──────────┐
        computed (KV in blocks) remaining │   remaining >= 1 while it lives: the last token always
        ──────────────────────┴──────────┘   runs, and makes the next one

    A waiting sequence holds no block. Token ids of an earlier attempt (`Request.output_ids`) are
    output from the start.
    """

    __slots__ = (
        "_tokens",
        "acceptance",
        "arrival",
        "arrival_time",
        "blocks",
        "cached_tokens",
        "choice_seconds",
        "decode_seconds",
        "decode_steps",
        "decode_tokens",
        "digests",
        "expected",
        "num_computed",
        "num_exported",
        "num_prompt",
        "num_prompt_logprobs",
        "num_tokens",
        "preemptions",
        "prefill_seconds",
        "prefill_steps",
        "prefill_tokens",
        "request",
        "slot",
        "start_time",
        "tail",
    )

    def __init__(self, request: Request, *, arrival: int, arrival_time: float) -> None:
        self.request = request
        self.arrival = arrival  # 0, 1, …: the order of requests
        self.arrival_time = arrival_time  # seconds of the engine's clock
        self.start_time: float | None = None  # when it first got a place
        self.acceptance = Acceptance()  # of its drafts, see `speculation`
        self.choice_seconds = FIRST_CHOICE_SECONDS  # of its last token under a grammar
        self.prefill_seconds = 0.0
        self.decode_seconds = 0.0
        self.prefill_tokens = self.prefill_steps = self.preemptions = 0
        self.decode_tokens = self.decode_steps = 0

        self.num_prompt = len(request.prompt_ids)
        self.num_tokens = self.num_prompt + len(request.output_ids)
        capacity = max(self.num_tokens, self.num_prompt + request.sampling.max_tokens)
        self._tokens = np.empty(capacity, np.int32)
        self._tokens[: self.num_prompt] = request.prompt_ids
        self._tokens[self.num_prompt : self.num_tokens] = request.output_ids

        self.slot = -1  # its row in the engine's arrays; -1: waiting
        self.blocks: list[int] = []
        self.digests: list[Digest] = []  # of its first full blocks, see `extend_digests`
        self.num_computed = 0
        # The sample of the step under way that will be its last token, whose place is taken
        # already; -1: all its tokens are known.
        self.expected = -1
        self.num_exported = 0  # blocks handed out, see `Request.exports_kv`
        self.tail: KVBlock | None = None  # an open block that came along, not yet in the pool
        self.cached_tokens = 0  # of the prompt, when it first got a place
        # Prompt logprobs handed out so far, the first token's absence included. A transcript
        # follows them, so a resumed request got them all.
        wants_prompt_logprobs = request.prompt_logprobs is not None and not request.output_ids
        self.num_prompt_logprobs = 1 if wants_prompt_logprobs else self.num_prompt

    @property
    def tokens(self) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """View of prompt and output, i32[num_tokens]."""
        return self._tokens[: self.num_tokens]

    def span(self, start: int, end: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """View of tokens, and of those drafted after them."""
        return self._tokens[start:end]

    @property
    def num_output(self) -> int:
        return self.num_tokens - self.num_prompt

    @property
    def remaining(self) -> int:
        """Known tokens whose KV is not computed."""
        return self.num_tokens - self.num_computed

    @property
    def is_decoding(self) -> bool:
        """Whether only the token that it made last is left to run."""
        return self.num_tokens - self.num_computed == 1 and self.num_tokens > self.num_prompt

    @property
    def is_complete(self) -> bool:
        """Whether no token may follow the last one: it ends as soon as that is known."""
        return self.num_output >= self.request.sampling.max_tokens

    @property
    def awaits_mask(self) -> bool:
        """Whether its next token cannot be chosen yet."""
        matcher = self.request.matcher
        return matcher is not None and matcher.mask is None

    @property
    def may_match_prefix(self) -> bool:
        """Prompt logprobs need every prompt token to run."""
        return self.num_prompt_logprobs >= self.num_prompt

    def tail_after(self, num_matched: int) -> int:
        """Tokens that its tail adds to `num_matched` cached ones; 0 when it does not follow."""
        tail = self.tail
        if tail is None or num_matched != self.num_prompt // BLOCK_SIZE * BLOCK_SIZE:
            return 0
        return min(tail.num_tokens, self.num_tokens - 1 - num_matched)

    def num_targets(self, num_tokens: int) -> int:
        """Prompt tokens whose logprobs its next `num_tokens` tokens tell for the first time."""
        end = min(self.num_computed + num_tokens + 1, self.num_prompt)
        return max(0, end - self.num_prompt_logprobs)

    def append(self, token_id: int) -> None:
        """Its next token: the one that is expected, if one is."""
        self.forget_expected()
        self._tokens[self.num_tokens] = token_id
        self.num_tokens += 1

    def expect(self, sample: int) -> None:
        """Go on as if the next token were known; the step under way makes it."""
        self.append(0)
        self.expected = sample

    def forget_expected(self) -> None:
        """Know as many tokens as are known."""
        if self.expected >= 0:
            self.expected = -1
            self.num_tokens -= 1

    def draft(self, token_ids: np.ndarray[tuple[int], np.dtype[np.int32]]) -> None:
        """Put tokens after its own that may turn out to be the next ones; fewer than may follow."""
        self._tokens[self.num_tokens : self.num_tokens + len(token_ids)] = token_ids

    def extend_digests(self, num_blocks: int, names: BlockNames) -> None:
        """Make `digests` at least `num_blocks` long; that many blocks of tokens must be known."""
        known = len(self.digests)
        if num_blocks > known:
            tokens = self._tokens[known * BLOCK_SIZE : num_blocks * BLOCK_SIZE]
            request = self.request
            names.extend(self.digests, tokens, request.cache_key, private=request.private_blocks)

    def usage(self, now: float) -> Usage:
        """What it cost until `now` (seconds of the engine's clock)."""
        start = now if self.start_time is None else self.start_time
        return Usage(
            prompt_tokens=self.num_prompt,
            cached_tokens=self.cached_tokens,
            output_tokens=self.num_output,
            queue_seconds=start - self.arrival_time,
            prefill_seconds=self.prefill_seconds,
            decode_seconds=self.decode_seconds,
            seconds=now - self.arrival_time,
            prefill_tokens=self.prefill_tokens,
            prefill_steps=self.prefill_steps,
            decode_tokens=self.decode_tokens,
            decode_steps=self.decode_steps,
            preemptions=self.preemptions,
        )
