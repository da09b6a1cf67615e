"""Targets for Prometheus: what there is to be scraped.

Nodes listen on unix sockets or on loopback, so the control plane passes their pages on. What joined
on another machine is not reached from here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from msgspec import Struct

from skerry_regions.address import Address, AddressError, is_loopback
from skerry_regions.control.desired.desired import Desired
from skerry_regions.control.reconcile.control_metrics import ControlMetrics
from skerry_regions.registry import Member

LOST_SECONDS = 600.0  # longer than any alert waits
API = "/control/v1"
EDGE_JOB, NODE_JOB, CONTROL_JOB = "skerry-edge", "skerry-node", "skerry-control"


class ScrapeGroup(Struct, frozen=True, kw_only=True):
    """Targets with labels, as `http_sd_configs` of Prometheus reads them."""

    targets: list[str]
    labels: dict[str, str]


class LostMembers:
    """Members, and those that went without a word, for a while: what has no target is down unseen.

    Lives on one event loop.
    """

    def __init__(
        self,
        members: Callable[[], tuple[Member, ...]],
        desired: Callable[[], Desired],
        clock: Callable[[], float],
    ) -> None:
        """What the control plane launches itself, it also replaces and takes away: `desired` says
        what that is. `clock` is monotonic, in seconds."""
        self._members = members
        self._desired = desired
        self._clock = clock
        self._seen: dict[str, tuple[Member, float]] = {}  # and when

    def __call__(self) -> tuple[Member, ...]:
        """Return who is there, and then who is lost."""
        now, here = self._clock(), self._members()
        seen = {
            id: (member, at)
            for id, (member, at) in self._seen.items()
            if now - at < LOST_SECONDS and member.state not in ("draining", "revoked")
        }
        owners = self._desired().pools().keys() | self._desired().edge_nodes().keys()
        others = [member for member in here if member.id.rpartition("-")[0] not in owners]
        self._seen = seen | {member.id: (member, now) for member in others}
        ids = {member.id for member in here}
        return (*here, *(member for id, (member, _) in seen.items() if id not in ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitoring:
    """What there is to be scraped."""

    metrics: ControlMetrics
    members: Callable[[], tuple[Member, ...]]
    url: Callable[[], str]  # of this control plane
    edge_url: Callable[[], str]  # of an edge that is in no registry; empty where there is none


def groups(monitoring: Monitoring) -> list[ScrapeGroup]:
    """Return the control plane, the edges, and the nodes by way of the control plane."""
    own = monitoring.url()
    found = [_group(own, f"{API}/metrics", CONTROL_JOB, "control")]
    members = monitoring.members()
    edges = [
        (member.id, member.address, member.region) for member in members if member.kind == "edge"
    ]
    if not edges and (url := monitoring.edge_url()):
        edges = [("edge", url, "")]
    for id, url, region in edges:
        if url.startswith(("http://", "https://")):
            found.append(_group(url, "/metrics", EDGE_JOB, id, region))
    for member in members:
        if page_address(member) is not None:
            path = f"{API}/nodes/{member.id}/metrics"
            found.append(_group(own, path, NODE_JOB, member.id, member.region))
    return found


def _group(url: str, path: str, job: str, instance: str, region: str = "") -> ScrapeGroup:
    """Return one target; `home_region`, since an edge's metrics have regions of their own."""
    parts = urlsplit(url)
    labels = {
        "job": job, "instance": instance, "__scheme__": parts.scheme, "__metrics_path__": path,
    }  # fmt: skip
    if region:
        labels["home_region"] = region
    return ScrapeGroup(targets=[parts.netloc], labels=labels)


def page_address(member: Member) -> Address | None:
    """Return where a node's own pages are, where that is this machine."""
    if member.kind != "node" or not member.control:
        return None
    try:
        address = Address.parse(member.control)
    except AddressError:
        return None
    return address if address.path or is_loopback(address.host) else None
