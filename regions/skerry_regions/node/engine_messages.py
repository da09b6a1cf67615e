"""What a node asks of its engine, and what the engine answers, in the words of `protocol`."""

from __future__ import annotations

from skerry_core.request import (
    Output,
    Priority,
    Request,
    SamplingParams,
    TokenLogprobs,
    Usage,
)
from skerry_regions.phases import Timeline
from skerry_regions.wire.protocol import Done, PhaseUsage, Submit, TokenLogprob, Tokens

PRIORITIES = {"interactive": Priority.INTERACTIVE, "batch": Priority.BATCH}


def engine_request(submit: Submit, engine_id: str) -> Request:
    """What the engine is asked for a submitted stream."""
    sampling = submit.sampling
    return Request(
        id=engine_id,
        prompt_ids=tuple(submit.prompt_ids),
        output_ids=tuple(submit.output_ids),
        sampling=SamplingParams(
            **{name: getattr(sampling, name) for name in sampling.__struct_fields__}
        ),
        tenant=submit.tenant,
        cache_key=submit.cache_key,
        priority=PRIORITIES[submit.priority],
        reject_if_busy=submit.reject_if_busy,
        pin_seconds=submit.pin_seconds,
        prompt_logprobs=submit.prompt_logprobs,
        exports_kv=submit.hand_over_to is not None,
    )


def tokens_event(stream: int, index: int, output: Output) -> Tokens:
    return Tokens(
        stream=stream,
        index=index,
        token_ids=list(output.token_ids),
        logprobs=_logprobs(output.logprobs),
        prompt_logprobs=_logprobs(output.prompt_logprobs),
    )


def _logprobs(logprobs: tuple[TokenLogprobs, ...]) -> list[TokenLogprob] | None:
    return [(entry.logprob, list(entry.top)) for entry in logprobs] or None


def done_event(stream: int, output: Output, timeline: Timeline) -> Done:
    assert output.finish_reason is not None
    assert output.usage is not None  # the engine's promise about a last output
    return Done(
        stream=stream,
        finish_reason=output.finish_reason,
        usage=_usage(output.usage),
        timeline=timeline,
    )


def _usage(usage: Usage) -> PhaseUsage:
    return PhaseUsage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
        queue_seconds=usage.queue_seconds,
        prefill_seconds=usage.prefill_seconds,
        decode_seconds=usage.decode_seconds,
    )
