"""What the control API needs of machines: tokens for new ones, and who joined."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from skerry_regions.control.machines.book import Machine, Machines
from skerry_regions.control.machines.hosts import Hosts
from skerry_regions.control.machines.join_tokens import JoinTokens
from skerry_regions.control.machines.joined import JoinedMachines, tell_revoked
from skerry_regions.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """Methods of `tokens` and `machines` block for milliseconds: call them on a thread."""

    tokens: JoinTokens
    machines: Machines
    joined: JoinedMachines
    nodes: Hosts
    registry: Registry

    async def revoke(self, id: str, *, actor: str) -> Machine:
        """Shut a machine out: its certificate is refused, and edges let go of it.

        Raises NotFound, or RegistryUnavailable when edges could not be notified: it is refused all
        the same, and they are notified when the control plane starts again.
        """
        machine = await asyncio.to_thread(lambda: self.machines.revoke(id, actor=actor))
        self.joined.forget(id)
        gone = self.nodes.forget(id)
        await asyncio.to_thread(tell_revoked, self.registry, machine, gone)
        return machine
