"""What a rank is to run: a runner's setup, as the process that starts the rank sends it."""

from __future__ import annotations

import ipaddress
import socket
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from skerry.runners import MAX_RANKS, RUNNERS, RunnerName
from skerry_core.config import ConfigError
from skerry_core.ranks import Parallel, RankChannel, Ranks
from skerry_core.runner import Progress, RunnerSetup, WantedSizes

_Size = Annotated[int, Meta(ge=1, le=1 << 40)]
_NumRanks = Annotated[int, Meta(ge=1, le=MAX_RANKS)]


class RankOrder(Struct, frozen=True, kw_only=True):
    """A `RunnerSetup` of a kind of runner, without what cannot leave the process."""

    runner: RunnerName
    weights: str
    vocab_size: _Size
    max_context: _Size
    num_blocks: _Size | None
    max_step_tokens: _Size | None
    max_samples: _Size | None
    host_blocks: _Size
    threads: _Size
    cache_dir: str
    floats: str | None
    kv: str | None
    tensor: _NumRanks
    pipeline: _NumRanks
    rank: Annotated[int, Meta(ge=1, lt=MAX_RANKS)]

    @classmethod
    def of(cls, runner: RunnerName, setup: RunnerSetup) -> RankOrder:
        return cls(
            runner=runner,
            weights=str(setup.weights),
            vocab_size=setup.vocab_size,
            max_context=setup.max_context,
            num_blocks=setup.sizes.num_blocks,
            max_step_tokens=setup.sizes.max_step_tokens,
            max_samples=setup.sizes.max_samples,
            host_blocks=setup.sizes.host_blocks,
            threads=setup.threads,
            cache_dir=str(setup.cache_dir),
            floats=setup.floats,
            kv=setup.kv,
            tensor=setup.parallel.tensor,
            pipeline=setup.parallel.pipeline,
            rank=setup.rank,
        )

    def setup(self, progress: Progress, ranks: Ranks) -> RunnerSetup:
        """Return the setup, for the rank's own process."""
        return RunnerSetup(
            weights=Path(self.weights),
            vocab_size=self.vocab_size,
            max_context=self.max_context,
            sizes=WantedSizes(
                num_blocks=self.num_blocks,
                max_step_tokens=self.max_step_tokens,
                max_samples=self.max_samples,
                host_blocks=self.host_blocks,
            ),
            threads=self.threads,
            cache_dir=Path(self.cache_dir),
            progress=progress,
            floats=self.floats,
            kv=self.kv,
            parallel=Parallel(tensor=self.tensor, pipeline=self.pipeline),
            rank=self.rank,
            ranks=ranks,
        )


def encode(order: RankOrder) -> bytes:
    return msgspec.msgpack.encode(order)


def decode(data: memoryview) -> RankOrder:
    """Raises msgspec.ValidationError or msgspec.DecodeError."""
    return msgspec.msgpack.decode(data, type=RankOrder)


def runner_class(opens: str) -> Any:
    """Import what a kind of runner opens: `module:class`. Raises ModuleNotFoundError."""
    module, _, name = opens.partition(":")
    return getattr(import_module(module), name)


def run_rank(order: RankOrder, setup: RunnerSetup, channel: RankChannel) -> None:
    """Run a rank until its channel is closed. Raises what opening a runner does, and RankLost."""
    kind = RUNNERS[order.runner]
    if not kind.opens_divided:
        raise ConfigError(f"the {order.runner} runner runs on one rank")
    if kind.listens_by_name:
        check_own_name()
    runner_class(kind.opens_divided).serve_rank(setup, channel, **kind.options)


def check_own_name() -> None:
    """Raise ConfigError unless this machine's name is of the loopback interface, where ranks may
    listen."""
    name = socket.gethostname()
    try:
        found = socket.getaddrinfo(name, None)
    except OSError as error:
        raise ConfigError(f"this machine's name, {name}, has no address: {error}") from None
    for *_, (address, *_) in found:
        if not ipaddress.ip_address(address).is_loopback:
            raise ConfigError(
                f"ranks would listen beyond the loopback interface: this machine's name, {name}, "
                f"is {address}, and not 127.0.0.1, in its hosts file"
            )
