"""The fast path of `skerry dns`: whether it is used, and its number of workers."""

from __future__ import annotations

import logging
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from skerry_dns.server.responder import Responder

if TYPE_CHECKING:
    from skerry_dns.fast.fast_path import FastPath

MAX_WORKERS = 64

logger = logging.getLogger(__name__)


def fast_path(responder: Responder, cache_dir: Path, workers: int | None) -> FastPath | None:
    """Return that of a server of what `responder` answers; None where there is none.

    `workers` None is one per core, 0 is none at all. Its code is compiled on the first start, and
    kept in `cache_dir`; the server answers without it until then.
    """
    if workers == 0:
        return None
    try:
        from skerry_cli.composition.dns.kernels import load_dns_kernels
        from skerry_dns.fast.fast_path import FastPath
        from skerry_dns.fast.workers import is_supported
    except ImportError as error:
        logger.warning("answers come from the slow path: %s is not installed", error.name)
        return None
    if not is_supported():
        logger.warning("answers come from the slow path: the fast one needs 64-bit Linux")
        return None
    count = min(workers or len(os.sched_getaffinity(0)), MAX_WORKERS)
    return FastPath(responder, count, partial(load_dns_kernels, cache_dir, _told))


def _told(what: str, share: float) -> None:
    logger.debug("%s: %.0f %%", what, 100 * share)
