"""What a step's result says of one sequence: logprobs, and whether and why it ends."""

from __future__ import annotations

from skerry_core.batch import StepResult
from skerry_core.engine.sequence import Sequence
from skerry_core.request import FinishReason, TokenLogprobs

NOT_A_NUMBER = "the model's output for this request is not a number"  # a failure


def finish_reason(sequence: Sequence) -> FinishReason | None:
    """Whether the last token of the output, which it has, is the end."""
    sampling = sequence.request.sampling
    if int(sequence.tokens[-1]) in sampling.stop_token_ids and (
        sequence.num_output > sampling.min_tokens
    ):
        return "stop"
    matcher = sequence.request.matcher
    if matcher is not None and matcher.is_finished:
        return "stop"
    return "length" if sequence.num_output >= sampling.max_tokens else None


def end_without_a_token(sequence: Sequence) -> tuple[FinishReason, str | None]:
    """Why a sequence ends for which no token is possible, and what failed, if anything did."""
    request = sequence.request
    forbids_all = request.matcher is not None or sequence.num_output < request.sampling.min_tokens
    return ("stop", None) if forbids_all else ("cancelled", NOT_A_NUMBER)


def logprobs_of(result: StepResult, sample: int, k: int | None) -> TokenLogprobs:
    """Logprobs of a sample's token and of its k most likely tokens."""
    return TokenLogprobs(
        token_id=int(result.token_ids[sample]),
        logprob=float(result.logprobs[sample]),
        top=tuple(
            zip(
                result.top_ids[sample, :k].tolist(),
                result.top_logprobs[sample, :k].tolist(),
                strict=True,
            )
        ),
    )
