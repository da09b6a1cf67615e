"""A stream's phases, from a few notes and what the engine tells at the end."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
from tests.clock import Clock

from skerry_regions.node.stream import StreamTimes
from skerry_regions.phases import Phase, Timeline


@dataclasses.dataclass(frozen=True)
class Ended:
    """An `EngineUsage`."""

    prompt_tokens: int = 200
    cached_tokens: int = 128
    output_tokens: int = 11
    queue_seconds: float = 0.5
    prefill_seconds: float = 0.1
    decode_seconds: float = 0.2
    seconds: float = 4.5
    prefill_tokens: int = 72
    prefill_steps: int = 2
    decode_tokens: int = 12
    decode_steps: int = 10
    preemptions: int = 0
    pinned: None = None


USAGE = Ended()


def phases(timeline: Timeline) -> dict[str, tuple[float, float]]:
    return {
        phase.name: (round(phase.start, 9), round(phase.seconds, 9)) for phase in timeline.phases
    }


def test_a_stream_on_one_node() -> None:
    clock = Clock(1000.0)
    times = StreamTimes(clock)
    clock.now += 1
    times.submitted()
    clock.now += 2
    times.first_tokens()
    clock.now += 3
    times.ended(USAGE)  # 4.5 s in the engine, 0.5 of them waiting: it had a place from 2 s on
    timeline = times.timeline()
    assert timeline.seconds == pytest.approx(6)
    assert phases(timeline) == {"queue": (1, 1), "prefill": (2, 1), "decode": (3, 3)}
    prefill = timeline.phase("prefill")
    assert prefill is not None
    assert (prefill.tokens, prefill.cached_tokens, prefill.steps) == (72, 128, 2)
    decode = timeline.phase("decode")
    assert decode is not None
    assert (decode.tokens, decode.steps) == (12, 10)


def test_a_grammar_and_a_hand_over_in() -> None:
    clock = Clock(1000.0)
    times = StreamTimes(clock)
    clock.now += 0.5
    times.compiled()
    clock.now += 1.5
    times.received(3, 3000, lost=False)
    times.submitted()
    clock.now += 4.5
    times.ended(dataclasses.replace(USAGE, prefill_steps=0, prefill_tokens=0, queue_seconds=0.0))
    timeline = times.timeline()
    assert phases(timeline) == {
        "grammar": (0, 0.5),
        "receive": (0.5, 1.5),
        "queue": (2, 0),
        "decode": (2, 4.5),
    }
    receive = timeline.phase("receive")
    assert receive is not None
    assert (receive.blocks, receive.bytes, receive.lost) == (3, 3000, False)


def test_a_hand_over_out_ends_after_the_prefill() -> None:
    clock = Clock(1000.0)
    times = StreamTimes(clock)
    times.submitted()
    clock.now += 4
    times.first_tokens()
    times.ended(dataclasses.replace(USAGE, decode_steps=0, seconds=4.0))
    clock.now += 0.25
    timeline = times.timeline((2, 2048))
    send, prefill = timeline.phase("send"), timeline.phase("prefill")
    assert send is not None
    assert prefill is not None
    assert send.end - prefill.end == pytest.approx(0.25)
    assert (send.blocks, send.bytes, send.lost) == (2, 2048, False)
    assert timeline.phase("decode") is None


def test_clocks_that_disagree_a_little_make_no_negative_phase() -> None:
    clock = Clock(1000.0)
    times = StreamTimes(clock)
    clock.now += 1
    times.submitted()
    clock.now += 1
    times.first_tokens()
    times.ended(dataclasses.replace(USAGE, seconds=9.0, queue_seconds=0.0))
    assert phases(times.timeline()) == {"queue": (1, 0), "prefill": (1, 1), "decode": (2, 0)}


def test_it_is_small_on_the_wire_and_its_bounds_hold() -> None:
    clock = Clock(1000.0)
    times = StreamTimes(clock)
    times.submitted()
    clock.now += 5
    times.ended(USAGE)
    encoded = msgspec.msgpack.encode(times.timeline())
    assert len(encoded) < 300
    assert msgspec.msgpack.decode(encoded, type=Timeline) == times.timeline()
    with pytest.raises(msgspec.ValidationError, match=r"phases\[0\].seconds"):
        msgspec.convert(
            {"seconds": 1.0, "phases": [{"name": "queue", "start": 0.0, "seconds": -1.0}]}, Timeline
        )
    many = [msgspec.to_builtins(Phase(name="queue", start=0.0, seconds=0.0))] * 9
    with pytest.raises(msgspec.ValidationError, match="length <= 8"):
        msgspec.convert({"seconds": 1.0, "phases": many}, Timeline)
