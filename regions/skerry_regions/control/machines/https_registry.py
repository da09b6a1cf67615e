"""The registry of machines that joined: the control plane's own, over HTTPS with their certificate.

The control plane keeps the leases by its clock. A machine sees those that it can reach: sockets of
the control plane's own machine are left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import msgspec

from skerry_regions.control.machines.calls import ControlAway, ControlRefused
from skerry_regions.control.machines.link import ControlLink
from skerry_regions.control.machines.messages import (
    Announcement,
    Order,
    Orders,
    Withdrawal,
)
from skerry_regions.registry import LEASE_SECONDS, Member, RegistryUnavailable

MAX_TOLD = 64  # mistakes that are remembered

T = TypeVar("T")

logger = logging.getLogger(__name__)


class HttpsRegistry:
    """See `Registry`. Safe to use from several threads."""

    def __init__(
        self,
        link: ControlLink,
        *,
        fingerprint: str = "",
        on_order: Callable[[Order], None] = lambda _: None,
        on_revoked: Callable[[], None] = lambda: None,
    ) -> None:
        """`fingerprint` is that of the assignment that this machine runs. `on_order`, and
        `on_revoked` when this machine is no longer wanted, are called on any thread."""
        self._link = link
        self._fingerprint = fingerprint
        self._told: set[str] = set()  # why records cannot be read
        self._on_order = on_order
        self._on_revoked = on_revoked

    def announce(self, member: Member, lease_seconds: float = LEASE_SECONDS) -> int:
        told = Announcement(
            member=member,
            lease_seconds=lease_seconds,
            fingerprint=self._fingerprint,
            revocations=self._link.revocations,
        )
        orders = self._call("PUT", "/member", Orders, told)
        self._link.shut_out(orders.revocations)
        self._on_order(orders.order)
        return orders.holder

    def withdraw(self, member_id: str, incarnation: int) -> None:
        self._call("POST", "/withdraw", Orders, Withdrawal(id=member_id, incarnation=incarnation))

    def members(self) -> list[Member]:
        raw = self._call("GET", "/members", list[msgspec.Raw])
        read = [self._read(record) for record in raw]
        return [member for member in read if member is not None]

    def close(self) -> None:
        self._link.close()

    def _call(
        self, method: str, path: str, type_: type[T], body: msgspec.Struct | None = None
    ) -> T:
        try:
            return self._link.call(method, path, type_, body)
        except (ControlAway, ControlRefused) as error:
            if isinstance(error, ControlRefused) and error.is_revoked:
                self._on_revoked()
            raise RegistryUnavailable(f"{self._link.url}: {error}") from None

    def _read(self, record: msgspec.Raw) -> Member | None:
        """Read a record; None of one that another version of Skerry wrote: the others are there all
        the same."""
        try:
            return msgspec.json.decode(record, type=Member)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            if str(error) not in self._told and len(self._told) < MAX_TOLD:
                self._told.add(str(error))
                logger.warning("%s: a record cannot be read: %s", self._link.url, error)
            return None
