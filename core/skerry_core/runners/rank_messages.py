"""What ranks of a model send each other: a kind, and arrays whose dtypes the kind says.

The first part of a message is msgpack: the kind and the shapes of the arrays, which follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from math import prod
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from skerry_core.batch import Float32, ForwardBatch, SamplingBatch, StepResult
from skerry_core.ranks import Part, RankLost
from skerry_core.sampling import SAMPLE

Array = NDArray[Any]

_Count = Annotated[int, Meta(ge=0, le=1 << 31)]
_Shape = Annotated[tuple[_Count, ...], Meta(max_length=6)]
_MAX_ARRAYS = 32


class MessageKind(IntEnum):
    """Most are answered in kind; STEP by RESULT, where another rank is asked for what it made."""

    MEET = 1  # where the ranks of a model find each other
    SIZES = 2  # blocks of KV, tokens and samples of a step: that a rank has room for; that all have
    READY = 3
    WARM_UP = 4
    STEP = 5
    RESULT = 6
    LOGITS = 7
    EXPORT = 8
    ADMIT = 9
    PACE = 10  # of ranks of a pipeline, from the sender's on, and the build that they have
    PLAN = 11  # layers at which the stages of a pipeline begin, of all but the first
    ECHO = 12  # answered with what came


class _Head(Struct, frozen=True, array_like=True):
    kind: MessageKind
    shapes: Annotated[tuple[_Shape, ...], Meta(max_length=_MAX_ARRAYS)] = ()


def encode(kind: MessageKind, arrays: Sequence[Array] = ()) -> list[Part]:
    """Return a message's parts; those of arrays share their memory where it is in one piece."""
    head = msgspec.msgpack.encode(_Head(kind, tuple(array.shape for array in arrays)))
    return [head, *(_bytes_of(array) for array in arrays)]


class RankMessage:
    """A message that came; its arrays are read as dtypes that the reader expects."""

    def __init__(self, parts: Sequence[memoryview]) -> None:
        """Raises RankLost for what is no message of ours."""
        try:
            head = msgspec.msgpack.decode(parts[0], type=_Head)
        except msgspec.DecodeError as error:
            raise RankLost(f"what came is no message between ranks: {error}") from None
        self.kind = head.kind
        self._shapes = head.shapes
        self._parts = parts[1:]
        if len(self._parts) != len(self._shapes):
            raise RankLost(f"{len(self._shapes)} arrays were to come, {len(self._parts)} did")

    def __len__(self) -> int:
        return len(self._parts)

    def array(self, index: int, dtype: Any) -> Array:
        """Return an array, which may be written to. Raises RankLost for one of another size."""
        if index >= len(self._parts):
            raise RankLost(f"{self.kind.name} came with {len(self._parts)} arrays")
        shape, part = self._shapes[index], self._parts[index]
        if part.nbytes != prod(shape) * np.dtype(dtype).itemsize:
            raise RankLost(f"an array of {part.nbytes} bytes came for {dtype}{list(shape)}")
        return np.frombuffer(part, dtype).reshape(shape)

    def arrays(self, dtypes: Sequence[Any]) -> list[Array]:
        """Return the first arrays as these dtypes. Raises RankLost."""
        return [self.array(index, dtype) for index, dtype in enumerate(dtypes)]


def expect(message: RankMessage, kind: MessageKind) -> RankMessage:
    """Return the message. Raises RankLost for one of another kind."""
    if message.kind is not kind:
        raise RankLost(f"{message.kind.name} came in place of {kind.name}")
    return message


_BATCH: dict[str, Any] = dict.fromkeys(
    ("token_ids", "positions", "query_start", "block_tables", "sample_tokens"), np.int32
)
_SAMPLING: dict[str, Any] = {
    "samples": SAMPLE, "history_start": np.int32, "history_ids": np.int32,
    "history_counts": np.int32, "bias_start": np.int32, "bias_ids": np.int32,
    "bias_values": np.float32, "allowed": np.uint32,
}  # fmt: skip
_RESULT: dict[str, Any] = {
    "token_ids": np.int32, "logprobs": np.float32, "top_ids": np.int32, "top_logprobs": np.float32,
}  # fmt: skip
_NO_FEEDS = np.zeros((0, 2), np.int32)


def step_message(batch: ForwardBatch, *hidden: Float32) -> list[Part]:
    """Return a step for another rank, and the hidden states of its tokens that it goes on from."""
    arrays = [np.asarray(getattr(batch, name), np.int32) for name in _BATCH]
    arrays += [np.asarray(getattr(batch.sampling, name)) for name in _SAMPLING]
    feeds = _NO_FEEDS if batch.feeds is None else batch.feeds
    return encode(MessageKind.STEP, [*arrays, feeds, *hidden])


def step_of(message: RankMessage) -> ForwardBatch:
    """Return what `step_message` was made of. Raises RankLost for what is no step."""
    arrays = message.arrays([*_BATCH.values(), *_SAMPLING.values(), np.int32])
    sampling = SamplingBatch(**dict(zip(_SAMPLING, arrays[len(_BATCH) : -1], strict=True)))
    fed = arrays[-1] if len(arrays[-1]) else None
    return ForwardBatch(**dict(zip(_BATCH, arrays, strict=False)), sampling=sampling, feeds=fed)


def hidden_of(message: RankMessage) -> Float32:
    """Return the hidden states that came with a step. Raises RankLost."""
    return message.array(len(_BATCH) + len(_SAMPLING) + 1, np.float32)


def result_message(result: StepResult) -> list[Part]:
    """Return what a step made, for another rank."""
    return encode(MessageKind.RESULT, [getattr(result, name) for name in _RESULT])


def result_of(message: RankMessage) -> StepResult:
    """Return what `result_message` was made of. Raises RankLost."""
    arrays = message.arrays(list(_RESULT.values()))
    return StepResult(**dict(zip(_RESULT, arrays, strict=True)))


def _bytes_of(array: Array) -> Part:
    if not array.size:
        return b""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
