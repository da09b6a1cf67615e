"""What every handler needs of its request: the edge, the caller, the time that is left."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from skerry.errors import InvalidInput, SkerryError
from skerry.wire import RunOptions, SamplingFields
from skerry_edge.api.edge_request import EdgeRequest
from skerry_edge.api.fields import MAX_PATH, UNENFORCED_HEADER, header_of
from skerry_edge.api.gateway_options import NOTED, TIMEOUT_HEADER, apply_options, note
from skerry_edge.envelopes import MODEL_HEADER
from skerry_edge.families.family import ReaderSpec
from skerry_edge.families.recognition import thought_at
from skerry_edge.gate.caller import Caller
from skerry_edge.gate.job import Job
from skerry_edge.generation.encoding import Form, Texts, encoded
from skerry_edge.generation.generation import Choices
from skerry_edge.generation.sse import Attended, EventStream, interruption
from skerry_edge.generation.start import start
from skerry_edge.hints import (
    AFFINITY_HEADER,
    EXPLAIN_HEADER,
    PIN_HEADER,
    affinity_of,
    pin_of,
    session_of,
)
from skerry_edge.ledger import idempotency, response_cache
from skerry_edge.ledger.idempotency import IdempotencyKey
from skerry_edge.ledger.repeats import RepeatPolicy
from skerry_edge.output.plan import OutputPlan
from skerry_edge.text.model import TextModel
from skerry_edge.text.prompts import stop_strings
from skerry_edge.text.thinking import Thinking
from skerry_edge.whole_numbers import whole_number
from skerry_regions.models.catalog import ModelSpec
from skerry_regions.wire.pins import Pin
from skerry_regions.wire.protocol import Sampling, Submit

MAX_PATIENCE_MS = 9_999_999_999
NOTHING_ASKED = SamplingFields()

T = TypeVar("T")


def caller_of(request: EdgeRequest, options: RunOptions | None = None) -> Caller:
    """Return who calls, with deadlines that count from the request's header, or from the step's
    start in a list of them.

    Raises `InvalidInput` for a header that cannot be. From now on the request's trace can be read.
    """
    principal = request.principal
    if options is not None and options.gateway is not None:
        apply_options(request, options.gateway)
    edge, trace, fields = request.edge, request.trace, request.fields
    if not NOTED.isdisjoint(fields):
        note(request)
    tenant = principal.account_id
    trace.add("receive", 0.0, trace.now())
    edge.traces.begin(trace, tenant)
    started = trace.started
    asked_at = started if request.step_started is None else request.step_started
    return Caller(
        request_id=trace.request_id,
        tenant=tenant,
        token=principal.login or principal.token_id,
        budgets=principal.budgets,
        models=principal.models,
        cache_key=edge.cache_keys[tenant, request.residency],
        started=started,
        deadline=started + edge.limits.request_seconds,
        begin_by=asked_at + _patience(fields) if TIMEOUT_HEADER in fields else math.inf,
        residency=request.residency,
        priority=request.priority,
        reject_if_busy=options is not None and bool(options.reject_if_busy),
        mixed_builds=fields.get("x-skerry-mixed-builds") == "1",
        affinity=affinity_of(fields, tenant) if AFFINITY_HEADER in fields else b"",
        pin_seconds=pin_of(fields) if PIN_HEADER in fields else 0.0,
        wants_reasons=fields.get(EXPLAIN_HEADER) == "1",
    )


def with_session(caller: Caller, name: str | None) -> Caller:
    """Return the caller in a session that the body names; one that the header names goes before."""
    if not name or caller.affinity:
        return caller
    return replace(caller, affinity=session_of(name, caller.tenant))


def job_of(
    caller: Caller,
    spec: ModelSpec,
    text: TextModel,
    prompt_ids: list[int],
    sampling: Sampling,
    asked: SamplingFields = NOTHING_ASKED,
    *,
    num_choices: int = 1,
    plan: OutputPlan | None = None,
    prompt_logprobs: int | None = None,
    tells_stop_token: bool = False,
    is_raw: bool = False,
    pins: tuple[Pin, ...] = (),
    thinking: Thinking | None = None,
) -> Job:
    """Return a prompt's job: what the region is sent of it, but for the time that is left.
    `sampling` was made of what was `asked`; `pins` are in place of what the header says."""
    if caller.pin_seconds and not pins:
        pins = ((len(prompt_ids), caller.pin_seconds),)
    # What follows a bare text is one too, thoughts and all.
    family = replace(text.family, reasoning=None) if is_raw else text.family
    thought = thought_at(family, text.ending(prompt_ids)) if family.reasoning else "closed"
    called = None if plan is None else plan.called
    reader = None
    if called is not None or family.reasoning is not None:
        reader = ReaderSpec(family=family, is_open=thought == "open", tools=called)
    submit = Submit(
        stream=1,  # assigned by the region's client
        request_id=caller.request_id,
        model=spec.id,
        prompt_ids=prompt_ids,
        sampling=sampling,
        tenant=caller.tenant,
        cache_key=caller.cache_key,
        priority=caller.priority,
        residency=caller.residency,
        reject_if_busy=caller.reject_if_busy,
        mixed_builds=caller.mixed_builds,
        affinity=caller.affinity,
        pins=pins,
        prompt_logprobs=prompt_logprobs,
        grammar=None if plan is None else plan.grammar_after(thought),
        reasoning=None
        if thinking is None
        else thinking.limit(text, sampling.max_tokens, is_open=thought == "open"),
    )
    return Job(
        submit=submit,
        caller=caller,
        model=spec,
        text=text,
        stops=stop_strings(asked.stop),
        num_choices=num_choices,
        reader=reader,
        tells_stop_token=tells_stop_token,
        is_seeded=asked.seed is not None,
        unenforced=() if plan is None else plan.unenforced,
        ignored=() if thinking is None else thinking.ignored,
    )


def repeats_of(request: EdgeRequest) -> RepeatPolicy | None:
    """Return what the headers want of answers that were given before; None when nothing.

    The body must have been read. Raises `InvalidInput`.
    """
    cache, default_ttl = None, request.edge.stores.cache_ttl
    if default_ttl is not None or not response_cache.HEADERS.isdisjoint(request.fields):
        cache = response_cache.policy_of(request.fields, default_ttl)
    key = key_of(request)
    return None if cache is None and key is None else RepeatPolicy(cache=cache, idempotency=key)


def key_of(request: EdgeRequest) -> IdempotencyKey | None:
    """Return the request's idempotency key, if it has one. The body must have been read.

    Raises `InvalidInput`.
    """
    given = request.fields.get(idempotency.HEADER)
    if given is None:
        return None
    scope = request.scope
    asked = (
        scope["path"],
        scope["query_string"].decode("latin-1"),
        request.fields.get(MODEL_HEADER, ""),
        request.residency or "",
    )
    return idempotency.key_of(given, asked, request.content)


def _patience(fields: Mapping[str, str]) -> float:
    """Return the seconds that the caller waits for the answer to begin, as AI Gateway's header
    says.

    Raises `InvalidInput`.
    """
    milliseconds = whole_number(fields[TIMEOUT_HEADER], 1, MAX_PATIENCE_MS)
    if milliseconds is None:
        raise InvalidInput(
            f"Bad input: the header {TIMEOUT_HEADER} is a number of milliseconds above 0",
            param=TIMEOUT_HEADER,
        )
    return milliseconds / 1000


async def begin(request: EdgeRequest, *jobs: Job) -> Choices:
    """Start the jobs, for as long as the client waits for it (see `attended`)."""
    if unenforced := jobs[0].unenforced:
        request.answer_headers[UNENFORCED_HEADER] = header_of(unenforced, MAX_PATH)
    request.ignore(jobs[0].ignored)
    starting = start(request.edge, jobs, request.answer_headers, repeats_of(request))
    return await attended(request, jobs[0].caller, starting)


def event_stream(
    request: EdgeRequest,
    caller: Caller,
    choices: Choices,
    events: AsyncGenerator[bytes, None],
    encode_error: Callable[[SkerryError], bytes],
) -> EventStream:
    """Return the answer that streams `events` of the choices, within the caller's deadlines."""
    return EventStream(
        events,
        encode_error=encode_error,
        close=choices.close,
        headers=request.answer_headers,
        keep_alive_seconds=request.edge.limits.keep_alive_seconds,
        deadline=caller.deadline,
        begin_by=caller.begin_by,
        clock=request.edge.clock,
    )


async def vectors(
    request: EdgeRequest, caller: Caller, spec: ModelSpec, texts: Texts, form: Form
) -> list[bytes]:
    """Return one vector per text (see `encoded`), for as long as the client waits for it."""
    repeats = repeats_of(request)
    work = encoded(request.edge, spec, texts, form, caller, request.answer_headers, repeats)
    return await attended(request, caller, work)


async def attended(request: EdgeRequest, caller: Caller, work: Awaitable[T]) -> T:
    """Await `work`, unless the client goes away (`ClientDisconnect`) or a deadline passes
    (`RequestTimeout`): then it is cancelled at once."""
    end = min(caller.begin_by, caller.deadline)
    async with Attended(request.receive) as client:
        try:
            async with asyncio.timeout(max(0.0, end - request.edge.clock())):
                return await work
        except (TimeoutError, asyncio.CancelledError) as exc:
            if client.gone:
                raise
            raise interruption(exc, retryable=caller.deadline <= caller.begin_by) from None
