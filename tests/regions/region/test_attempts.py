"""What a stream tells of its attempts: the nodes' phases, why one ended, how exact the next is."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.regions.region.test_split import DECODE, PREFILL, SPARE, platform
from tests.regions.toy_nodes import MODEL, PROMPT, InOrder, RunningNode, after_tokens, read, submit

from skerry.errors import InvalidInput, Overloaded
from skerry_regions.kv.frames import Offer
from skerry_regions.phases import Timeline
from skerry_regions.prometheus import exposition
from skerry_regions.region.attempt_record import MAX_REASON, AttemptedStream, AttemptRecord
from skerry_regions.region.local import LocalRegion
from skerry_regions.region.remote_region import RemoteRegion
from skerry_regions.trace_context import new_context
from skerry_regions.wire.protocol import Done, HandOverFrom, Submit

pytestmark = pytest.mark.anyio


def phases_of(timeline: Timeline) -> list[str]:
    return [phase.name for phase in timeline.phases]


def metrics_of(node: RunningNode) -> dict[tuple[str, tuple[str, ...]], float]:
    """Samples by name and label values."""
    text = exposition(node.node.metrics.families()).decode()
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_a_split_stream_tells_both_nodes_phases(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        stream = await p.region().generate(submit())
        assert isinstance(stream, AttemptedStream)
        await read(stream)
        [attempt] = stream.attempts
        assert attempt.nodes == ("prefill", "decode")
        assert (attempt.outcome, attempt.num_before, attempt.num_tokens) == ("length", 0, 40)
        assert attempt.first_tokens is not None
        assert attempt.ended is not None
        assert attempt.asked <= attempt.began <= attempt.first_tokens <= attempt.ended

        prefill, decode = attempt.timelines["prefill"], attempt.timelines["decode"]
        assert set(phases_of(prefill)) == {"queue", "prefill", "send"}
        assert set(phases_of(decode)) == {"receive", "queue", "decode"}
        work, send = prefill.phase("prefill"), prefill.phase("send")
        assert work is not None
        assert send is not None
        assert (work.tokens, work.cached_tokens) == (len(PROMPT), 0)
        assert work.steps >= 1
        receive, made = decode.phase("receive"), decode.phase("decode")
        assert receive is not None
        assert made is not None
        assert (made.tokens, made.steps) == (39, 39)
        block_bytes = p.nodes[PREFILL].engine.runner.kv_format.block_bytes
        assert send.blocks == receive.blocks == 3  # two full ones and an open one
        assert send.bytes == receive.bytes == 3 * block_bytes
        assert send.end >= work.end
        assert not send.lost
        assert not receive.lost
        network = attempt.network_seconds
        assert network is not None
        assert network + decode.seconds == pytest.approx(attempt.ended - attempt.began)


async def test_nodes_count_what_they_did(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        await read(await p.region().generate(submit()))
        prefill, decode = metrics_of(p.nodes[PREFILL]), metrics_of(p.nodes[DECODE])
        assert prefill["vllm:prompt_tokens_total", (MODEL,)] == len(PROMPT)
        assert prefill["vllm:request_prefill_time_seconds_count", (MODEL,)] == 1
        assert prefill["vllm:time_to_first_token_seconds_count", (MODEL,)] == 1
        assert ("vllm:request_decode_time_seconds_count", (MODEL,)) not in prefill
        assert prefill["skerry_handovers_total", (MODEL, "send", "whole")] == 1
        assert prefill["skerry_handover_seconds_count", (MODEL,)] == 1
        assert prefill["vllm:prefix_cache_queries_total", (MODEL,)] == len(PROMPT)
        assert decode["skerry_handovers_total", (MODEL, "receive", "whole")] == 1
        assert decode["vllm:request_decode_time_seconds_count", (MODEL,)] == 1
        assert decode["vllm:generation_tokens_total", (MODEL,)] == 39
        assert decode["vllm:request_success_total", (MODEL, "length")] == 1
        sent = prefill["skerry_handover_bytes_total", (MODEL, "send")]
        assert sent == decode["skerry_handover_bytes_total", (MODEL, "receive")] > 0


async def test_a_resume_says_why_the_last_attempt_ended(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        p.nodes[DECODE].gate.hold_after(8)
        stream = await p.region().generate(submit())
        ids, logprobs = await after_tokens(stream, 9)
        await p.nodes[DECODE].stop()
        await read(stream, ids, logprobs)
        first, *_, last = stream.attempts
        assert (first.nodes, first.outcome) == (("prefill", "decode"), "unavailable")
        assert "decode" in first.reason
        assert first.num_tokens >= 9
        assert (last.nodes, last.outcome) == (("spare",), "length")
        assert last.num_before == sum(each.num_tokens for each in stream.attempts[:-1])
        assert last.num_before + last.num_tokens == 40
        assert last.is_exact
        assert p.nodes[SPARE].node.metrics.failures.value(MODEL, "unavailable") == 0


async def test_hand_overs_that_are_lost_are_counted(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        p.kv_address = f"unix:{tmp_path}/nobody.sock"
        stream = await p.region(lease_seconds=0.3).generate(submit())
        await read(stream)
        assert stream.attempts[0].reason == "the decode node could not be given the KV"
        assert p.nodes[PREFILL].node.metrics.handovers.value(MODEL, "send", "lost") == 1


async def test_kv_that_does_not_come_is_a_lost_phase(tmp_path: Path) -> None:
    node = RunningNode("alone", tmp_path)
    try:
        source = HandOverFrom(transfer=1, token=b"t" * 16, lease_seconds=0.05)
        stream = await LocalRegion(node.node).generate(submit(hand_over_from=source))
        assert [event async for event in stream]
        timeline = stream.attempts[0].timelines["alone"]
        receive = timeline.phase("receive")
        assert receive is not None
        assert (receive.lost, receive.blocks) == (True, 0)
        assert receive.seconds >= 0.04
        assert phases_of(timeline) == ["receive", "queue", "prefill", "decode"]
        assert node.node.metrics.handovers.value(MODEL, "receive", "lost") == 1
    finally:
        await node.stop()


async def test_a_stream_in_the_edges_own_process_tells_the_same(tmp_path: Path) -> None:
    node = RunningNode("alone", tmp_path)
    try:
        stream = await LocalRegion(node.node).generate(submit())
        done = [event async for event in stream][-1]
        assert isinstance(done, Done)
        assert isinstance(stream, AttemptedStream)
        [attempt] = stream.attempts
        assert (attempt.nodes, attempt.outcome, attempt.num_tokens) == (("alone",), "length", 40)
        assert phases_of(attempt.timelines["alone"]) == ["queue", "prefill", "decode"]
    finally:
        await node.stop()


async def test_the_trace_goes_with_the_stream_and_the_hand_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A transfer that comes too late is refused, and the log says whose it was."""
    async with platform(tmp_path) as p:
        context = new_context()
        p.nodes[PREFILL].gate.hold_after(0)
        stream = await p.region(lease_seconds=0.2).generate(submit(trace=context))
        p.nodes[PREFILL].gate.open.set()
        with caplog.at_level(logging.WARNING, "skerry_regions.kv.transfer_server"):
            await read(stream)
            [refused] = [
                record for record in caplog.records if "refused" in record.getMessage()
            ] or [None]
        if refused is not None:  # the prefill may still have been in time
            assert refused.__dict__["fields"]["trace_id"] == context.trace_id


async def test_an_edge_that_knows_no_traces_is_understood(tmp_path: Path) -> None:
    """Fields of the protocol that are new are optional in both directions."""
    old_submit = msgspec.to_builtins(submit())
    del old_submit["trace"]
    assert msgspec.convert(old_submit, Submit).trace is None
    async with platform(tmp_path) as p:
        alone = RemoteRegion(lambda: p.links, InOrder([p.links[SPARE]]))
        _, _, done = await read(await alone.generate(submit()))
        old_done = msgspec.to_builtins(done)
        del old_done["timeline"]
        assert msgspec.convert(old_done, Done).timeline is None


def test_contexts_from_outside_are_bounded() -> None:
    offer = {
        "type": "offer", "transfer": 1, "token": b"t", "request_id": "r", "epoch": 0,
        "numeric_build": "b", "kv_dtype": "float16", "block_bytes": 1, "num_layers": 1,
        "digests": [], "trace": {"trace_id": "x" * 32, "span_id": "0" * 16},
    }  # fmt: skip
    with pytest.raises(msgspec.ValidationError, match="trace_id"):
        msgspec.convert(offer, Offer)
    bad = msgspec.to_builtins(submit(trace=new_context()))
    bad["trace"]["state"] = "x" * 513
    with pytest.raises(msgspec.ValidationError, match="state"):
        msgspec.convert(bad, Submit)


def test_only_sentences_of_our_own_are_told() -> None:
    record = AttemptRecord(nodes=("n",), asked=0.0, began=0.0)
    record.fail(1.0, InvalidInput("the grammar `secret words` is wrong"))
    assert (record.outcome, record.reason) == ("invalid_input", "")
    other = AttemptRecord(nodes=("n",), asked=0.0, began=0.0)
    other.fail(1.0, Overloaded("x" * 1000))
    assert len(other.reason) == MAX_REASON


async def test_an_aborted_stream_leaves_an_attempt_that_has_no_end(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        p.nodes[DECODE].gate.hold_after(2)
        stream = await p.region().generate(submit())
        await after_tokens(stream, 3)
        stream.abort()
        p.nodes[DECODE].gate.open.set()
        [attempt] = stream.attempts
        assert attempt.num_tokens >= 3
        async with asyncio.timeout(60):
            async for event in stream:
                assert not isinstance(event, Done) or event.finish_reason == "cancelled"
        assert stream.attempts[0].outcome == "cancelled"
