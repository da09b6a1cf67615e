"""Both ends of a connection, and messages between them."""

from __future__ import annotations

from skerry_regions.wire.edge_connection import EdgeConnection
from skerry_regions.wire.node_connection import NodeConnection
from skerry_regions.wire.protocol import (
    Done,
    Failed,
    Hello,
    ModelBuild,
    PhaseUsage,
    Sampling,
    Submit,
    Tokens,
)

MODEL = "@cf/toy/toy"
USAGE = PhaseUsage(
    prompt_tokens=2,
    cached_tokens=0,
    output_tokens=1,
    queue_seconds=0.0,
    prefill_seconds=0.0,
    decode_seconds=0.0,
)


def build(tokenizer: str = "t", template: str = "c", numeric_build: str = "") -> ModelBuild:
    return ModelBuild(id=MODEL, tokenizer=tokenizer, template=template, numeric_build=numeric_build)


def hello(
    id: str, *, window: int = 4, max_streams: int = 3, versions: list[int] | None = None
) -> Hello:
    return Hello(
        versions=versions or [1], id=id, models=[build()], window=window, max_streams=max_streams
    )


def submit(stream: int = 1, *, output_ids: list[int] | None = None, epoch: int = 0) -> Submit:
    return Submit(
        stream=stream,
        request_id="r",
        epoch=epoch,
        model=MODEL,
        prompt_ids=[1, 2],
        output_ids=output_ids or [],
        sampling=Sampling(),
    )


def tokens(stream: int, index: int, count: int = 1) -> Tokens:
    return Tokens(stream=stream, index=index, token_ids=list(range(index, index + count)))


def done(stream: int) -> Done:
    return Done(stream=stream, finish_reason="length", usage=USAGE)


def failed(stream: int) -> Failed:
    return Failed(stream=stream, code="unavailable", message="gone")


def pair(*, window: int = 4, max_streams: int = 3) -> tuple[EdgeConnection, NodeConnection]:
    """An edge and a node that have greeted each other."""
    edge = EdgeConnection(hello("edge", window=window, max_streams=max_streams))
    node = NodeConnection(hello("node", window=window, max_streams=max_streams))
    assert [type(message) for message in node.receive(edge.data_to_send())] == [Hello]
    assert [type(message) for message in edge.receive(node.data_to_send())] == [Hello]
    return edge, node


def deliver(edge: EdgeConnection, node: NodeConnection) -> tuple[list[object], list[object]]:
    """Carry all bytes both ways; what the node got, and what the edge got."""
    return list(node.receive(edge.data_to_send())), list(edge.receive(node.data_to_send()))
