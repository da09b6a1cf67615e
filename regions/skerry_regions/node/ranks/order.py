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
from skerry_regions.spec_types import StageAddress

_Size = Annotated[int, Meta(ge=1, le=1 << 40)]
_NumRanks = Annotated[int, Meta(ge=1, le=MAX_RANKS)]


class OwnFiles(Struct, frozen=True, tag="files"):
    """What a rank on the same machine has of its parent."""

    weights: str
    cache_dir: str
    threads: _Size


class StoredModel(Struct, frozen=True, tag="stored", kw_only=True):
    """What a rank on another machine has: the name of a model, never a path. It looks into its own
    store, and its machine says how many threads it has."""

    id: Annotated[str, Meta(max_length=256)]  # in the catalog
    weights_digest: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    stages: Annotated[tuple[StageAddress, ...], Meta(max_length=MAX_RANKS)]
    """Where all ranks after the first are served."""


class RankOrder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `RunnerSetup` of a kind of runner, without what cannot leave the process."""

    runner: RunnerName
    of: OwnFiles | StoredModel
    vocab_size: _Size
    max_context: _Size
    num_blocks: _Size | None
    max_step_tokens: _Size | None
    max_samples: _Size | None
    host_blocks: _Size
    floats: str | None
    kv: str | None
    tensor: _NumRanks
    pipeline: _NumRanks
    rank: Annotated[int, Meta(ge=1, lt=MAX_RANKS)]

    @classmethod
    def to(cls, runner: RunnerName, setup: RunnerSetup, of: StoredModel | None = None) -> RankOrder:
        """Return that of a rank on the same machine, or of a model that another one has stored."""
        own = OwnFiles(str(setup.weights), str(setup.cache_dir), setup.threads)
        return cls(
            runner=runner,
            of=of or own,
            vocab_size=setup.vocab_size,
            max_context=setup.max_context,
            num_blocks=setup.sizes.num_blocks,
            max_step_tokens=setup.sizes.max_step_tokens,
            max_samples=setup.sizes.max_samples,
            host_blocks=setup.sizes.host_blocks,
            floats=setup.floats,
            kv=setup.kv,
            tensor=setup.parallel.tensor,
            pipeline=setup.parallel.pipeline,
            rank=setup.rank,
        )

    def setup(self, own: OwnFiles, progress: Progress, ranks: Ranks) -> RunnerSetup:
        """Return the setup, for the rank's own process."""
        return RunnerSetup(
            weights=Path(own.weights),
            vocab_size=self.vocab_size,
            max_context=self.max_context,
            sizes=WantedSizes(
                num_blocks=self.num_blocks,
                max_step_tokens=self.max_step_tokens,
                max_samples=self.max_samples,
                host_blocks=self.host_blocks,
            ),
            threads=own.threads,
            cache_dir=Path(own.cache_dir),
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
