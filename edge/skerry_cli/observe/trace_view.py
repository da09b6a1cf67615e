"""A trace for a person: its route as a table of terms, its spans as a timeline."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import IO

import msgspec
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from skerry_edge.telemetry.tracing import Attributes, Candidate, Span, TraceRecord, Value

BAR_CELLS = 32
WIDTH = 160  # of a pipe: lines are not to be broken there
FIRST = ("prompt", "choice")  # shown when there are several
HIDDEN = ("path", "expected_seconds", "expected_cached_tokens")  # shown by the table of the route

_decoder = msgspec.json.Decoder(TraceRecord)


def print_trace(content: bytes, file: IO[str]) -> None:
    """Print the JSON of a trace."""
    width = None if file.isatty() else WIDTH
    Console(file=file, width=width, highlight=False).print(view(_decoder.decode(content)))


def view(record: TraceRecord) -> RenderableType:
    """Return the whole trace."""
    parts: list[RenderableType] = [_heading(record)]
    routes = [span for span in record.spans if span.candidates]
    for number, route in enumerate(routes, 1):
        parts += ["", _route(route, number, len(routes))]
    parts += ["", _timeline(record)]
    if record.dropped:
        parts.append(f"{record.dropped} further spans were not kept.")
    return Group(*parts)


def _heading(record: TraceRecord) -> Text:
    started = datetime.fromtimestamp(record.started_at, UTC).strftime("%Y-%m-%d %H:%M:%S")
    if record.seconds is None:
        end = "still running"
    else:
        status = record.status if record.status is not None else "client gone"
        end = f"{status} after {_milliseconds(record.seconds)} ms"
    return Text.assemble(
        ("request ", "dim"), (record.request_id, "bold"), f"  {end}\n",
        ("trace   ", "dim"), record.trace_id, ("  edge ", "dim"), record.edge or "-",
        ("  started ", "dim"), f"{started} UTC",
    )  # fmt: skip


def _route(span: Span, number: int, count: int) -> Table:
    """Return what the router compared, in milliseconds; the first row is what it chose."""
    names = list(dict.fromkeys(name for each in span.candidates for name in each.terms))
    title = "route" if count == 1 else f"route of attempt {number}"
    table = Table(title=f"{title}, in ms", title_justify="left", box=None, pad_edge=False)
    table.add_column("")
    table.add_column("placement")
    for heading in ("total", "cached", *names):
        table.add_column(heading, justify="right")
    for rank, each in enumerate(span.candidates):
        table.add_row(
            "→" if rank == 0 else "",
            _placement(each),
            _milliseconds(each.seconds),
            str(each.cached_tokens),
            *(_milliseconds(each.terms[name]) if name in each.terms else "" for name in names),
            style="bold" if rank == 0 else "",
        )
    return table


def _placement(candidate: Candidate) -> str:
    notes = [f"KV of {candidate.fetched_from}"] if candidate.fetched_from else []
    if not candidate.same_build:
        notes.append("another build")
    return f"{candidate.path} ({', '.join(notes)})" if notes else candidate.path


def _timeline(record: TraceRecord) -> Table:
    total = record.seconds or max(span.start + (span.seconds or 0.0) for span in record.spans)
    table = Table(box=None, pad_edge=False)
    table.add_column("span", no_wrap=True)
    table.add_column("at ms", justify="right")
    table.add_column("ms", justify="right")
    table.add_column("", no_wrap=True, min_width=BAR_CELLS)
    table.add_column("")
    for span, depth in _in_order(record.spans):
        seconds = total - span.start if span.seconds is None else span.seconds
        table.add_row(
            "  " * depth + span.name,
            _milliseconds(span.start),
            _milliseconds(seconds),
            Text(_bar(span.start, seconds, total), "cyan"),
            Text(_told(span.attributes), "dim"),
        )
    return table


def _in_order(spans: list[Span]) -> Iterator[tuple[Span, int]]:
    """Yield spans with their depth, each before its children, those in order of their start."""
    children: dict[str, list[Span]] = {}
    for span in spans[1:]:
        children.setdefault(span.parent, []).append(span)
    stack = [(spans[0], 0)]
    while stack:
        span, depth = stack.pop()
        yield span, depth
        below = sorted(children.pop(span.id, ()), key=lambda each: each.start)
        stack += [(each, depth + 1) for each in reversed(below)]


def _bar(start: float, seconds: float, total: float) -> str:
    if total <= 0:
        return ""
    first = min(BAR_CELLS - 1, max(0, int(start / total * BAR_CELLS)))
    cells = max(1, min(BAR_CELLS - first, round(seconds / total * BAR_CELLS)))
    return " " * first + "█" * cells


def _told(attributes: Attributes) -> str:
    shown = (
        (name, value)
        for name, value in attributes.items()
        if name not in HIDDEN and value is not False and not (name in FIRST and value == 0)
    )
    return "  ".join(f"{_label(name)} {_value(name, value)}" for name, value in shown)


def _label(name: str) -> str:
    return name.removesuffix("_seconds").replace("_", " ")


def _value(name: str, value: Value) -> str:
    match value:
        case list():
            return " > ".join(value)
        case bool():
            return "yes" if value else "no"
        case float() if name.endswith("_seconds"):
            return f"{_milliseconds(value)} ms"
        case _:
            return str(value)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"
