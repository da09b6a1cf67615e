"""Notifies secondaries of a new serial, until each has acknowledged it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence

import dns.asyncquery
import dns.exception
import dns.rcode
import dns.tsig

from skerry_dns.transfer.transfer import notification
from skerry_dns.zone.zone import Zone

ATTEMPTS = 5
TIMEOUT = 5.0  # seconds for an answer
PAUSE = 10.0  # seconds after the first attempt, doubled after each

logger = logging.getLogger(__name__)

Target = tuple[str, int]  # address and port
Notification = Callable[[], Coroutine[None, None, None]]  # of one serial, to all


async def notify(
    zone: Zone,
    key: dns.tsig.Key,
    targets: Sequence[Target],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Notify all, at the same time. Who does not answer is notified again some times, then left to
    find out by itself: secondaries look every two hours (the zone's refresh)."""
    await asyncio.gather(*(_notify(zone, key, target, sleep) for target in targets))


async def _notify(
    zone: Zone, key: dns.tsig.Key, target: Target, sleep: Callable[[float], Awaitable[None]]
) -> None:
    address, port = target
    reason = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            await sleep(PAUSE * 2 ** (attempt - 1))
        try:
            message = notification(zone, key)  # again: its signature has the time in it
            answer = await dns.asyncquery.udp(message, address, timeout=TIMEOUT, port=port)
        except (dns.exception.DNSException, OSError) as error:
            reason = str(error) or type(error).__name__
            continue
        if answer.rcode() == dns.rcode.NOERROR:
            return
        reason = dns.rcode.to_text(answer.rcode())
    logger.warning("secondary %s port %d was not notified: %s", address, port, reason)
