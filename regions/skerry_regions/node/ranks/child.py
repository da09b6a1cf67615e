"""Where a rank runs that is not first: `python -m skerry_regions.node.ranks.child DESCRIPTOR`."""

from __future__ import annotations

import logging
import os
import socket
import sys
from typing import NoReturn

import msgspec

from skerry_core.config import ConfigError
from skerry_core.ranks import RankLost
from skerry_core.weights.tensors import WeightsError
from skerry_regions.node.ranks.channel import SocketChannel
from skerry_regions.node.ranks.children import LocalRanks
from skerry_regions.node.ranks.order import decode, run_rank

logger = logging.getLogger(__name__)


def main(descriptor: int) -> None:
    """Run as the rank that the first message says, and end the process with the channel."""
    channel = SocketChannel(
        socket.socket(fileno=descriptor), "the rank before this one", ended=lambda error: _end(0)
    )
    try:
        order = decode(channel.receive()[0])
        ranks = LocalRanks(order.runner)
        ranks.when_lost(lambda error: _fail(channel, f"{error}"))
        run_rank(order, order.setup(channel.report, ranks), channel)
    except (ConfigError, WeightsError, RankLost, ModuleNotFoundError, msgspec.DecodeError) as error:
        _fail(channel, f"{error}")
    except BaseException as error:
        logger.exception("a rank stopped on an error")
        _fail(channel, f"a rank stopped on an error: {error}")
    _end(0)


def _fail(channel: SocketChannel, why: str) -> NoReturn:
    channel.fail(why)
    _end(1)


def _end(status: int) -> NoReturn:
    """End at once: what the first rank needs is gone, or it needs nothing any more."""
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    main(int(sys.argv[1]))
