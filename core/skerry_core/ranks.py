"""Ranks: the processes, and devices, over which one model is divided, and how they reach another.

Rank 0 leads: it is the node's own process, with the engine. The others run a part of each layer
(tensor parallelism; Shoeybi et al., "Megatron-LM", 2019) or some of the layers (pipeline
parallelism; Huang et al., "GPipe", 2019), and end with it. Ranks of a stage are neighbours: rank
`stage * tensor + part`. Who starts them, and what carries their messages, core does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from skerry_core.config import ConfigError

if TYPE_CHECKING:
    from skerry_core.runner import RunnerSetup


Part = bytes | memoryview  # of a message


class RankLost(Exception):
    """Another rank, or the way to it, is gone: the model cannot go on. The message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """Over how many ranks a model is divided."""

    tensor: int = 1  # that share each layer
    pipeline: int = 1  # stages of layers, one behind the other

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline"):
            if getattr(self, name) < 1:
                raise ConfigError(f"parallel.{name} must be at least 1, got {getattr(self, name)}")

    @classmethod
    def of(cls, tensor: int | None, pipeline: int | None) -> Parallel | None:
        """Return that of sizes which may not be given; None: neither is."""
        if tensor is None and pipeline is None:
            return None
        return cls(tensor=tensor or 1, pipeline=pipeline or 1)

    @property
    def num_ranks(self) -> int:
        return self.tensor * self.pipeline


UNDIVIDED = Parallel()


class RankChannel(Protocol):
    """One end of a connection between two ranks: whole messages, both ways, each way in order.

    A message is one or more buffers of bytes, bounded in number and size, which arrive as they were
    sent. One thread sends and one receives; any may close. What was sent and has not been received
    is bounded too: `send` waits for the other end then.
    """

    def send(self, *parts: Part) -> None:
        """Send a message; the buffers may be overwritten once this returns. Raises RankLost, and
        ValueError for a message beyond the bounds."""
        ...

    def receive(self) -> Sequence[memoryview]:
        """Wait for the next message. Raises RankLost once there will be none."""
        ...

    def close(self) -> None:
        """End the connection; the other end's rank ends with it. Idempotent."""
        ...


class Ranks(Protocol):
    """Starts ranks of a model beside the one that calls it."""

    @property
    def form(self) -> str:
        """Return how the model is divided, and why, for who operates it."""
        ...

    def start(self, setup: RunnerSetup) -> RankChannel:
        """Start rank `setup.rank` of the same kind of runner, which runs `serve_rank` of what the
        kind opens with this setup and the channel's other end; return without waiting for it.

        What it reports of its progress goes to this rank's. It ends when the channel is closed or
        this process ends; when it ends first, the channel and this process's engine do. Raises
        RankLost where it cannot be started.
        """
        ...

    def when_lost(self, call: Callable[[RankLost], None]) -> None:
        """Call back once, from any thread, when a rank that was started has ended though its
        channel is open; at once if it has by now."""
        ...


@runtime_checkable
class DividedRunner(Protocol):
    """What a `ModelRunner` over several ranks has besides."""

    @property
    def ranks(self) -> Ranks:
        """Return what started the others."""
        ...
