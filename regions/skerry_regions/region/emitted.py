"""The tokens of a stream that were passed on, whichever attempts made them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from skerry.errors import InternalError
from skerry_regions.wire.protocol import TokenLogprob, Tokens


class Emitted:
    """Output ids, and how many prompt logprobs: no token is passed on twice, and none is lost."""

    def __init__(self, output_ids: Sequence[int]) -> None:
        self.token_ids = list(output_ids)
        self._prompt_logprobs = 0  # entries passed on …
        self._attempt_prompt_logprobs = 0  # … and sent by this attempt, which starts over

    def start_attempt(self) -> None:
        """Begin an attempt, which sends all prompt logprobs again."""
        self._attempt_prompt_logprobs = 0

    def fresh(self, tokens: Tokens) -> Tokens | None:
        """Note an event; return what of it is new, or None.

        On a split route the first token comes from both nodes. Raises InternalError for a gap.
        """
        known = len(self.token_ids) - tokens.index
        if known < 0:
            raise InternalError(f"tokens at {tokens.index}, expected {len(self.token_ids)}")
        token_ids = tokens.token_ids[known:]
        logprobs = tokens.logprobs[known:] if tokens.logprobs is not None else None
        self.token_ids += token_ids
        prompt_logprobs = self._fresh_prompt_logprobs(tokens.prompt_logprobs or [])
        if not token_ids and not prompt_logprobs:
            return None
        return replace(
            tokens,
            index=tokens.index + known,
            token_ids=token_ids,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs or None,
        )

    def _fresh_prompt_logprobs(self, logprobs: list[TokenLogprob]) -> list[TokenLogprob]:
        """Return those that no earlier attempt sent before it failed."""
        fresh = logprobs[max(0, self._prompt_logprobs - self._attempt_prompt_logprobs) :]
        self._attempt_prompt_logprobs += len(logprobs)
        self._prompt_logprobs += len(fresh)
        return fresh
