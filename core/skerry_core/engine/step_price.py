"""What tokens cost in a step, those of streams and those of prompts, learned from steps' times."""

from __future__ import annotations

_NEW = 0.05  # weight of the latest step
_BASE_TOKENS = 2.0
_PRIOR_VARIANCE = 0.5  # of n, as if seen
_MOST = 2.0  # times the expected seconds that are believed: beyond, somebody else had the CPU
_FLOOR = 1e-9  # seconds per token, for clocks that stand still
_PROMPT_PRIOR = 1e-3  # seconds per token, until a step with a prompt has run
_PROMPT_MEMORY = 0.9  # weight that earlier steps keep when one has run
_LEAST_SHARE = 0.25  # of a step's seconds per token, that a prompt's token is believed to cost
_LEAST_CHUNK = 16  # tokens: kernels read the weights once for as many
_MOST_CHUNK = 1 << 30


class StepPrice:
    """Seconds of a step of n tokens as a line through the recent ones: base + per_token * n.

    While all have the same n, a token more is taken to cost what it does where reading the weights
    is worth `_BASE_TOKENS` tokens of arithmetic.
    """

    def __init__(self) -> None:
        self._num_seen = 0
        self._n = self._s = self._nn = self._ns = 0.0  # moving means of n, seconds, n², n·seconds
        self._prompt_tokens, self._prompt_seconds = 1.0, _PROMPT_PRIOR  # fading sums

    @property
    def per_token(self) -> float:
        """Return seconds; before the first step only its ratio to `of` means something."""
        if not self._num_seen:
            return 1.0
        guess = self._s / (self._n + _BASE_TOKENS)
        variance = max(0.0, self._nn - self._n * self._n) + _PRIOR_VARIANCE
        covariance = self._ns - self._n * self._s + _PRIOR_VARIANCE * guess
        return min(max(covariance / variance, 0.25 * guess), self._s / self._n)

    def of(self, num_tokens: int) -> float:
        """Return seconds of a step of so many tokens."""
        if not self._num_seen:
            return num_tokens + _BASE_TOKENS
        return max(self._s + (num_tokens - self._n) * self.per_token, num_tokens * _FLOOR)

    @property
    def per_prompt_token(self) -> float:
        """Return seconds that a step takes longer for a token of a prompt."""
        return self._prompt_seconds / self._prompt_tokens

    def chunk(self, num_streams: int, gap_seconds: float) -> int:
        """Return tokens of prompts that a step may take on beside so many streams.

        As many as make it last `gap_seconds`, or, where streams alone take more than half of that,
        twice as long as without.
        """
        streams = self.of(num_streams) if self._num_seen else 0.0
        seconds = max(gap_seconds - streams, streams)
        return max(int(min(seconds / self.per_prompt_token, _MOST_CHUNK)), _LEAST_CHUNK)

    def observe(self, stream_tokens: int, prompt_tokens: int, seconds: float) -> None:
        """Learn from a step that has run."""
        if prompt_tokens:
            self._observe_prompts(stream_tokens, prompt_tokens, seconds)
        else:
            self._observe_streams(stream_tokens, seconds)

    def _observe_prompts(self, stream_tokens: int, prompt_tokens: int, seconds: float) -> None:
        streams = self.of(stream_tokens) if stream_tokens and self._num_seen else 0.0
        least = _LEAST_SHARE * seconds * prompt_tokens / (stream_tokens + prompt_tokens)
        most = _MOST * prompt_tokens * self.per_prompt_token
        prompts = max(seconds - streams, least, prompt_tokens * _FLOOR)
        self._prompt_seconds = _PROMPT_MEMORY * self._prompt_seconds + min(prompts, most)
        self._prompt_tokens = _PROMPT_MEMORY * self._prompt_tokens + prompt_tokens

    def _observe_streams(self, num_tokens: int, seconds: float) -> None:
        if self._num_seen:
            seconds = min(seconds, _MOST * self.of(num_tokens))
        self._num_seen += 1
        new = max(_NEW, 1.0 / self._num_seen)
        self._n += new * (num_tokens - self._n)
        self._s += new * (seconds - self._s)
        self._nn += new * (num_tokens * num_tokens - self._nn)
        self._ns += new * (num_tokens * seconds - self._ns)
