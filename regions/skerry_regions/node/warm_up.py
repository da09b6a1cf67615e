"""A new node computes the operator's prompts before it says that it is ready.

Their blocks are named in the scope that all tenants share (`skerry_core.names`), so whoever's
prompt begins with one of them finds it cached. Those that the node's file tier still has come from
there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import partial

from skerry.errors import SkerryError
from skerry_core.names import SHARED_KEY
from skerry_core.runner import Progress
from skerry_regions.node.node import Node
from skerry_regions.node.stream import NodeStream
from skerry_regions.wire.client import ended
from skerry_regions.wire.protocol import Sampling, Submit

logger = logging.getLogger(__name__)

WARM_UP_SECONDS = 60.0  # for all of a node's prompts; the rest is computed when it is first used


async def warm_up(
    node: Node,
    model: str,
    prompts: Sequence[Sequence[int]],
    progress: Progress,
    *,
    seconds: float = WARM_UP_SECONDS,
) -> int:
    """Compute these prompts of token ids one by one; how many were done in time.

    One that the engine refuses is a warning: the node serves without it.
    """
    end = time.monotonic() + seconds
    for done, prompt in enumerate(prompts):
        progress("computing prompts to warm up", done / len(prompts))
        submit = Submit(
            stream=1,
            request_id="warm-up",
            model=model,
            prompt_ids=list(prompt),
            sampling=Sampling(max_tokens=1),
            cache_key=SHARED_KEY,
        )
        try:
            async with asyncio.timeout(end - time.monotonic()):
                await ended(partial(node.submit, submit), NodeStream.abort)
        except TimeoutError:
            logger.warning("%d of %d prompts are warm after %g s", done, len(prompts), seconds)
            return done
        except SkerryError as error:
            logger.warning("prompt %d cannot be warmed up: %s", done, error.message)
    return len(prompts)
