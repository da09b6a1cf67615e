"""What hosts call: they report, and get their orders."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from msgspec.structs import replace
from starlette.responses import Response

from skerry_regions.control.api.machine_calls import MachineCall
from skerry_regions.control.api.requests import json_answer
from skerry_regions.control.errors import Forbidden
from skerry_regions.control.machines.messages import HostReport
from skerry_regions.registry import Member, Registry, RegistryUnavailable

logger = logging.getLogger(__name__)


async def report(call: MachineCall) -> Response:
    """Take in a host's report; its orders come also while the registry is away."""
    control, told = call.control, await call.body(HostReport)
    machine = await asyncio.to_thread(control.machines.wanted, call.machine)
    if machine.kind != "host":
        raise Forbidden("only a host runs what it is ordered to")
    orders, members = control.nodes.take(machine, told, control.store.desired)
    await asyncio.to_thread(_announce, control.registry, members)
    return json_answer(replace(orders, revocations=control.revocations_beyond(told.revocations)))


def _announce(registry: Registry, members: Iterable[Member]) -> None:
    try:
        for member in members:
            registry.announce(member)
    except RegistryUnavailable as error:
        logger.info("nodes of hosts are not announced: %s", error)
