"""A region of several nodes, seen from the edge: streams and embeddings over its connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from skerry.errors import ModelNotFound, SkerryError, Unavailable
from skerry_regions import zones as residency
from skerry_regions.region.placer import Placer
from skerry_regions.region.recovery import RecoveryPolicy, in_zone, is_recoverable
from skerry_regions.region.remote_stream import RemoteStream
from skerry_regions.wire.client import embedded
from skerry_regions.wire.link import NodeLink
from skerry_regions.wire.protocol import Embed, Submit

EMBED_SECONDS = 0.02  # about what an embedding takes


class RemoteRegion:
    """`RegionClient` over connections to nodes.

    `links` is looked at afresh for every attempt, so nodes may come and go.
    """

    def __init__(
        self,
        links: Callable[[], Sequence[NodeLink]],
        placer: Placer,
        policy: RecoveryPolicy | None = None,
        knows: Callable[[str, str | None], bool] = lambda model, zone: False,
    ) -> None:
        """`knows` distinguishes a model without a node now, in a zone, from one that never had
        one."""
        self._links = links
        self._knows = knows
        self.placer = placer
        self.policy = policy or RecoveryPolicy()

    async def generate(self, submit: Submit) -> RemoteStream:
        """See `RegionClient.generate`."""
        links = self._links_for(submit)
        serves = any(submit.model in link.models for link in links)
        is_elsewhere = not serves and any(link.is_up for link in links)
        if is_elsewhere and not self._knows(submit.model, submit.residency):
            raise ModelNotFound(f"no node{in_zone(submit)} serves {submit.model}", param="model")
        stream = RemoteStream(self.placer, self.policy, submit)
        await stream.start()
        return stream

    async def embed(self, embed: Embed) -> bytes:
        """See `RegionClient.embed`. Tried once on each node, where it should be done first.

        What one node began another can do again: a text's vector has the same bits everywhere. A
        model that is known to have had nodes is waited for, as a stream's start is.
        """
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self.policy.start_patience
        for pause in self.policy.pauses():
            outcome = await self._try_to_embed(embed)
            if isinstance(outcome, bytes):
                return outcome
            is_waited_for = self._knows(embed.model, embed.residency)
            if not (isinstance(outcome, Unavailable) and is_waited_for) or loop.time() >= give_up:
                raise outcome
            await asyncio.sleep(pause)
        raise AssertionError("there is always another pause")

    async def _try_to_embed(self, embed: Embed) -> bytes | SkerryError:
        """Return the vectors, or why no node makes them now."""
        error: SkerryError = Unavailable(
            f"no node{in_zone(embed)} embeds by {embed.model} now", retry_after=1.0
        )
        links = [link for link in self._links_for(embed) if embed.model in link.models]
        links.sort(key=lambda link: (not link.is_up, _seconds_until_embedded(link)))
        for link in links:
            try:
                return await embedded(partial(link.embed, embed), link.forget)
            except SkerryError as refusal:
                error = refusal
                if not is_recoverable(refusal):
                    break
        return error

    def _links_for(self, request: Submit | Embed) -> list[NodeLink]:
        """Return links to the nodes of the zone that the request is bound to."""
        return [link for link in self._links() if residency.allows(request.residency, link.zone)]

    def models(self) -> frozenset[str]:
        return frozenset(model for link in self._links() if link.is_up for model in link.models)

    async def close(self) -> None:
        await asyncio.gather(*(link.close() for link in self._links()))


def _seconds_until_embedded(link: NodeLink) -> float:
    """Return the seconds there and back, and of what is before it in the queue."""
    return (link.rtt or 0.0) + EMBED_SECONDS * link.num_streams
