"""Where a rank runs that is not first: `python -m skerry_regions.node.ranks.child DESCRIPTOR`."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable
from typing import NoReturn

import msgspec

from skerry.errors import SkerryError
from skerry_core.config import ConfigError
from skerry_core.ranks import RankLost, Ranks
from skerry_core.runner import Progress
from skerry_core.weights.tensors import WeightsError
from skerry_regions.models.catalog import CatalogError
from skerry_regions.models.problems import ModelProblem
from skerry_regions.node.ranks.channel import SILENCE_SECONDS, SocketChannel
from skerry_regions.node.ranks.children import LocalRanks
from skerry_regions.node.ranks.order import OwnFiles, RankOrder, decode, run_rank
from skerry_regions.node.ranks.stream import RankStream

logger = logging.getLogger(__name__)

Prepare = Callable[[RankOrder, Progress], tuple[OwnFiles, Ranks]]
"""What a rank has on its machine, and what starts those behind it. Raises what `run` reports."""


def main(descriptor: int) -> None:
    """Run as a child of the rank at the other end of a socket."""
    run(socket.socket(fileno=descriptor), _prepare)


def run(
    stream: RankStream,
    prepare: Prepare,
    *,
    at: str = "",
    silence_seconds: float = SILENCE_SECONDS,
) -> NoReturn:
    """Run as the rank that the first message says, and end the process with the stream.

    `at` is where it is served, in what it reports of itself.
    """

    def fail(why: object) -> NoReturn:
        channel.fail(f"{at}: {why}" if at else f"{why}")
        _end(1)

    channel = SocketChannel(
        stream,
        "the rank before this one",
        ended=lambda error: _end(0),
        silence_seconds=silence_seconds,
    )
    try:
        order = decode(channel.receive()[0])
        own, ranks = prepare(order, channel.report)
        ranks.when_lost(fail)
        run_rank(order, order.setup(own, channel.report, ranks), channel)
    except (
        *(CatalogError, ConfigError, ModelProblem, ModuleNotFoundError, msgspec.DecodeError),
        *(RankLost, WeightsError),
    ) as error:
        fail(error)
    except SkerryError as error:
        fail(error.message)
    except MemoryError as error:
        fail(f"too little memory for this rank's layers and their KV: {error}")
    except BaseException as error:
        logger.exception("a rank stopped on an error")
        fail(f"a rank stopped on an error: {error}")
    _end(0)


def _prepare(order: RankOrder, progress: Progress) -> tuple[OwnFiles, Ranks]:
    if not isinstance(order.of, OwnFiles):
        raise ConfigError("a rank on the same machine has its parent's files")
    return order.of, LocalRanks(order.runner)


def _end(status: int) -> NoReturn:
    """End at once: what the first rank needs is gone, or it needs nothing any more."""
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    main(int(sys.argv[1]))
