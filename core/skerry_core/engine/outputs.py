"""What a step made of each sequence: tokens and logprobs, and whether and why it ends."""

from __future__ import annotations

from skerry_core.batch import StepResult
from skerry_core.engine.batching import BatchBuilder
from skerry_core.engine.masks import Masks
from skerry_core.engine.sequence import Sequence
from skerry_core.engine.step_plan import PlannedRow
from skerry_core.grammar_error import GrammarError
from skerry_core.request import FinishReason, KVBlock, Output, TokenLogprob
from skerry_core.runner import ModelRunner
from skerry_core.sampling import clean, log_softmax

NOT_A_NUMBER = "the model's output for this request is not a number"  # a failure


def finish_reason(sequence: Sequence) -> FinishReason | None:
    """Return why the last token of the output, which it has, is the end; None when it is not."""
    sampling = sequence.sampling
    matcher = sequence.matcher
    stopped: FinishReason = "stop"
    if matcher is not None and matcher.has_withheld_call:  # what it said instead is not all
        stopped = "length"
    if int(sequence.tokens[-1]) in sampling.stop_token_ids and (
        sequence.output_tokens > sampling.min_tokens
    ):
        return stopped
    if matcher is not None and matcher.is_finished:
        return stopped
    return "length" if sequence.output_tokens >= sampling.max_tokens else None


class OutputBuilder:
    """Appends what steps made to their sequences, and says so in outputs."""

    def __init__(self, runner: ModelRunner, batches: BatchBuilder, masks: Masks) -> None:
        self._runner = runner
        self._batches = batches
        self._masks = masks
        self.num_tokens = 0  # appended

    def output(
        self,
        row: PlannedRow,
        result: StepResult,
        samples: range,
        token_ids: list[int],
        kv: tuple[KVBlock, ...],
    ) -> Output:
        """Append what the row's samples made to its sequence, and return it.

        `token_ids` are all of the result's; `kv` are blocks that the row exports.
        """
        sequence = row.sequence
        asked = sequence.request.prompt_logprobs
        prompt_logprobs = [_logprob(result, s, asked) for s in samples[: row.num_targets]]
        made: list[int] = []
        logprobs: list[TokenLogprob] = []
        reason: FinishReason | None = None
        failure: str | None = None
        withheld = led = False
        is_first = sequence.output_tokens == len(sequence.request.output_ids)
        if row.makes_token:
            k = sequence.sampling.logprobs
            for sample in samples[row.num_targets : row.num_targets + 1 + row.num_accepted]:
                if sequence.matcher is not None:
                    withheld |= self._masks.withholds(sequence, self._runner.last_logits, sample)
                chosen = self._chosen(sequence, token_ids[sample])
                token_id, reason, failure = self._append(sequence, chosen)
                if token_id >= 0:
                    led |= token_id != chosen
                    made.append(token_id)
                    if k is not None:
                        logprobs.append(self._logprob_of(result, sample, k, token_id))
                if reason is not None:
                    break
        return Output(
            request_id=sequence.id,
            token_ids=made,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            kv=kv,
            begun=sequence if is_first and made else None,
            finish_reason=reason,
            usage=None if reason is None else sequence,
            failure=failure,
            withheld=withheld,
            led=led,
        )

    @staticmethod
    def last(sequence: Sequence, reason: FinishReason, failure: str | None = None) -> Output:
        """Return the last output of a sequence that ends between two steps."""
        return Output(
            request_id=sequence.id,
            token_ids=[],
            finish_reason=reason,
            usage=sequence,
            failure=failure,
        )

    @staticmethod
    def _chosen(sequence: Sequence, token_id: int) -> int:
        """Return the sampled token, or the one that ends reasoning at its limit; under a grammar
        as soon as that allows it."""
        forced = None if sequence.budget is None else sequence.budget.forced
        if forced is None or token_id < 0:
            return token_id
        return forced if sequence.matcher is None or sequence.matcher.allows(forced) else token_id

    def _append(
        self, sequence: Sequence, token_id: int
    ) -> tuple[int, FinishReason | None, str | None]:
        """Append a chosen token: the one that was taken, -1 for none; whether and why it ends."""
        if token_id < 0:  # no token is possible
            return token_id, *_end_without_a_token(sequence)
        failure: str | None = None
        if sequence.matcher is not None:
            try:
                token_id = self._masks.take(sequence, token_id)
            except GrammarError as error:
                failure = str(error)
        self._batches.append(sequence, token_id)
        if sequence.budget is not None:
            sequence.budget.advance(token_id)
        self.num_tokens += 1
        if failure is not None:
            return token_id, "cancelled", failure
        return token_id, finish_reason(sequence), None

    def _logprob_of(self, result: StepResult, sample: int, k: int, token_id: int) -> TokenLogprob:
        """Return logprobs of the token that was taken, which need not be the one that was
        sampled."""
        told = _logprob(result, sample, k)
        if result.token_ids[sample] == token_id:
            return told
        logprobs = log_softmax(clean(self._runner.last_logits()[sample]))
        return float(logprobs[token_id]), told[1]


def _end_without_a_token(sequence: Sequence) -> tuple[FinishReason, str | None]:
    """Return why a sequence without a possible token ends, and what failed, if anything did."""
    forbids_all = (
        sequence.matcher is not None or sequence.output_tokens < sequence.sampling.min_tokens
    )
    return ("stop", None) if forbids_all else ("cancelled", NOT_A_NUMBER)


def _logprob(result: StepResult, sample: int, k: int | None) -> TokenLogprob:
    """Return logprobs of a sample's token and of its k most likely tokens."""
    ids, logprobs = result.top_ids[sample, :k].tolist(), result.top_logprobs[sample, :k].tolist()
    return float(result.logprobs[sample]), list(zip(ids, logprobs, strict=True))
