"""A request in one row: what of its trace fits into a list. It has no text, as traces have none."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from skerry_edge.telemetry.tracing import Span, TraceRecord

WAITS = ("edge", "network", "queue", "prefill", "hand-over")
"""What a request waits for until its first token, in the order of time."""


class RequestRow(Struct, frozen=True, kw_only=True):
    """One request that ended. Times are seconds."""

    id: str
    at: float  # Unix seconds of its header
    status: int | None  # None: the client was gone
    model: str
    outcome: str  # its finish reason, or an error's code
    seconds: float
    first_token: float | None  # since its header
    waits: list[float]  # of `WAITS`, in their order
    prompt_tokens: int
    tokens: int  # of the answer
    nodes: list[str]  # of its last attempt
    attempts: int


def row_of(record: TraceRecord) -> RequestRow:
    """Return the row of a trace. Of several choices it is the first that says how it went."""
    named: dict[str, list[Span]] = {}
    for span in record.spans:
        named.setdefault(span.name, []).append(span)
    choices = named.get("generate", [])
    choice = choices[0] if choices else None
    attempts = [
        each for each in named.get("attempt", ()) if choice is not None and each.parent == choice.id
    ]
    first = next((each for each in attempts if "first_token_seconds" in each.attributes), None)
    tokenised = named.get("tokenise", [])
    said = choice or (tokenised[0] if tokenised else record.spans[0])
    return RequestRow(
        id=record.request_id,
        at=record.started_at,
        status=record.status,
        model=str(said.attributes.get("model", "")),
        outcome=str(said.attributes.get("outcome", "")),
        seconds=record.seconds or 0.0,
        first_token=None
        if first is None
        else round(first.start + _number(first, "first_token_seconds"), 6),
        waits=[round(each, 6) for each in _waits(record, choice, first)],
        prompt_tokens=sum(int(_number(each, "tokens")) for each in tokenised),
        tokens=sum(int(_number(each, "tokens")) for each in choices),
        nodes=_nodes(attempts),
        attempts=len(attempts),
    )


def _waits(record: TraceRecord, choice: Span | None, first: Span | None) -> Iterable[float]:
    """Yield seconds of `WAITS`: of the attempt that had the first token."""
    if choice is None or first is None:
        yield from (record.seconds or 0.0, 0.0, 0.0, 0.0, 0.0)
        return
    yield first.start
    yield _number(first, "network_seconds")
    phases = [each for each in record.spans if each.parent == first.id]
    for name in WAITS[2:]:
        yield sum(each.seconds or 0.0 for each in phases if each.name == name)


def _nodes(attempts: list[Span]) -> list[str]:
    nodes = attempts[-1].attributes.get("nodes", []) if attempts else []
    return [str(each) for each in nodes] if isinstance(nodes, list) else []


def _number(span: Span, name: str) -> float:
    value = span.attributes.get(name, 0)
    return float(value) if isinstance(value, int | float) else 0.0
