"""The dialect-free middle: jobs go to the region, pieces of text come back.

    Job ── start ──▶ Choices ── pieces ──▶ (index, Piece) … ── usage

Everything that a caller can get wrong has been refused before; what `start` raises is about the
model's node (`Overloaded`, `Unavailable`, `PromptTooLong`) and still becomes an HTTP status.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence

from msgspec.structs import replace

from skerry.errors import SkerryError
from skerry_edge.answer_headers import AnswerHeaders
from skerry_edge.families.reader import Reader
from skerry_edge.gate.admission import Place
from skerry_edge.gate.grants import check_model
from skerry_edge.gate.job import Job
from skerry_edge.gate.request_demand import RequestDemand
from skerry_edge.generation.edge import Edge
from skerry_edge.generation.generation import Choices, Generation
from skerry_edge.hints import EXPLAIN_HEADER
from skerry_edge.ledger.repeats import Repeat, RepeatPolicy, open_repeat
from skerry_edge.ledger.settlement import Settlement
from skerry_edge.telemetry import tracing
from skerry_edge.telemetry.choice_telemetry import ChoiceTelemetry
from skerry_edge.text.transcript import Transcript
from skerry_regions.wire.client import TokenStream
from skerry_regions.wire.protocol import Submit

MAX_LOGGED_PROMPT = 8192  # characters

logger = logging.getLogger(__name__)


async def start(
    edge: Edge,
    jobs: Sequence[Job],
    headers: AnswerHeaders,
    repeats: RepeatPolicy | None = None,
) -> Choices:
    """Place every choice of a request's jobs, one per prompt, all for the same model.

    Raises what `RegionClient.generate` raises, or `IdempotencyMismatch`. Then, and when it is
    cancelled, nothing runs.
    """
    if edge.log_prompts:
        _log_prompts(jobs)
    model = jobs[0].model.id
    running: list[Generation] = []
    place = await _entered(edge, jobs, headers, running)
    try:
        repeat = None
        if repeats is not None:
            repeat = await open_repeat(edge.stores, edge.secret, jobs, repeats, headers)
            jobs = repeat.jobs
        is_hit = repeat is not None and repeat.is_hit
        settlement = Settlement(place, jobs, is_hit=is_hit)
        for prompt, job in enumerate(jobs):
            for choice in range(job.num_choices):
                running.append(
                    await _generation(edge, job, prompt, choice, headers, settlement, repeat)
                )
        place.check()
    except BaseException as error:
        for generation in running:
            generation.close()
        place.leave()
        _count_failure(edge, model, error)
        raise
    row = jobs[0].caller.request_id if repeat is None else repeat.row
    settlement.admit(edge.stores.journal, row, jobs[0])
    if not is_hit:
        edge.metrics.prompt_tokens.add(settlement.prompt_tokens, model)
    edge.metrics.running.change(1)
    return Choices(running, settlement.usage, functools.partial(_close, edge, settlement, repeat))


async def _entered(
    edge: Edge, jobs: Sequence[Job], headers: AnswerHeaders, running: Sequence[Generation]
) -> Place:
    """Take the request's place. Raises what `Admission.enter` raises."""

    def end(error: SkerryError) -> None:
        for generation in running:
            generation.end(error)

    model = jobs[0].model
    prompt = sum([len(job.submit.prompt_ids) for job in jobs])
    output = sum([job.submit.sampling.max_tokens * job.num_choices for job in jobs])
    caller = jobs[0].caller
    demand = RequestDemand(
        caller=caller,
        model=model.id,
        price=model.price,
        prompt_tokens=prompt,
        output_tokens=output,
        choices=sum([job.num_choices for job in jobs]),
        is_kept=any(job.submit.pins for job in jobs),
    )
    try:
        with tracing.span("admission"):
            if caller.models:
                check_model(model, caller.models)
            return await edge.admission.enter(demand, headers.update, end)
    except SkerryError as error:
        _count_failure(edge, model.id, error)
        raise


def _count_failure(edge: Edge, model: str, error: BaseException) -> None:
    if isinstance(error, SkerryError):
        edge.metrics.generations_failed.add(1, model, error.code)


async def _generation(
    edge: Edge,
    job: Job,
    prompt: int,
    choice: int,
    headers: AnswerHeaders,
    settlement: Settlement,
    repeat: Repeat | None,
) -> Generation:
    """Place one choice, or replay it. Raises what `RegionClient.generate` raises."""
    is_hit = repeat is not None and repeat.is_hit
    telemetry = ChoiceTelemetry(
        None if is_hit else edge.metrics,
        tracing.current(),
        edge.clock,
        model=job.model.id,
        prompt=prompt,
        choice=choice,
        started=job.caller.started,
    )
    stream: TokenStream
    if repeat is not None and is_hit:
        stream = repeat.replayed()
    else:
        try:
            stream = await edge.region.generate(_submit(edge, job, prompt, choice, telemetry))
        except SkerryError as error:
            telemetry.rejected(error.code)
            raise
        telemetry.placed(stream)
        if repeat is not None:
            stream = repeat.recorded(stream)
    transcript = Transcript(
        job.text,
        stop_token_ids=frozenset(job.submit.sampling.stop_token_ids),
        stops=job.stops,
        tells_stop_token=job.tells_stop_token,
        marks=None if job.reader is None else job.reader.family.marks,
    )
    return Generation(
        stream,
        transcript,
        (telemetry, settlement.of(prompt, choice)),
        None if job.reader is None else Reader(job.reader),
        functools.partial(headers.__setitem__, EXPLAIN_HEADER)
        if job.caller.wants_reasons
        else None,
    )


def _submit(edge: Edge, job: Job, prompt: int, choice: int, telemetry: ChoiceTelemetry) -> Submit:
    """Return the message for one choice, with the time that is left.

    Prompts of one request have ids of their own: a node takes a second attempt at the same id and
    choice for a successor of the first.
    """
    submit, sampling = job.submit, job.submit.sampling
    return replace(
        submit,
        request_id=f"{submit.request_id}-{prompt}" if prompt else submit.request_id,
        sampling=replace(sampling, choice=choice) if choice else sampling,
        seconds_left=max(0.0, job.caller.deadline - edge.clock()),
        trace=telemetry.context,
    )


def _close(edge: Edge, settlement: Settlement, repeat: Repeat | None) -> None:
    """Settle a request whose choices are closed."""
    edge.metrics.running.change(-1)
    outcome = settlement.close()
    if repeat is not None:
        repeat.close(outcome)


def _log_prompts(jobs: Sequence[Job]) -> None:
    """Log what the operator switched on (`SKERRY_LOG_PROMPTS`): no other place logs a text."""
    for number, job in enumerate(jobs):
        text = job.text.detokenizer().push(job.submit.prompt_ids)
        fields = {"model": job.model.id, "prompt": text[:MAX_LOGGED_PROMPT]}
        logger.info("prompt %d of the request", number, extra={"fields": fields})
