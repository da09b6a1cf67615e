"""What a DNS server answers from, made of a topology and of files in the home.

Large zones take seconds to parse and to sign, so this runs on a thread: what it makes belongs to
no one else until it is there.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import dns.name

from skerry_cli.home.dns.signing import load_zone_keys, sign_zone
from skerry_cli.home.dns.transfers import load_transfer_key, transfers_of
from skerry_cli.home.errors import CannotStart
from skerry_cli.home.geo_sources import geo_files, open_known_places
from skerry_cli.home.state import Home
from skerry_dns.transfer.notify import Notification, notify
from skerry_dns.transfer.transfer import Transfers
from skerry_dns.zone.from_topology import origin_of, zone_of
from skerry_dns.zone.zone import Zone
from skerry_edge.reload import stamp_of_file
from skerry_regions.geo.from_topology import places_of
from skerry_regions.geo.places import Places
from skerry_regions.geo.whereabouts import ClientRtts, KnownPlaces, is_old
from skerry_regions.topology.spec import Topology
from skerry_regions.topology.zone_spec import DnsSpec

if TYPE_CHECKING:
    from skerry_dns.signing.signed_zone import SignedZone
    from skerry_dns.signing.zone_keys import ZoneKeys

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneContents:
    """Everything of one version of a zone."""

    topology: Topology
    made_at: float  # Unix seconds
    serial: int
    stamp: HomeStamp
    zone: Zone
    signed: SignedZone | None
    places: Places
    known: KnownPlaces | None  # where clients are
    transfers: Transfers | None
    notification: Notification | None

    @property
    def spec(self) -> DnsSpec:
        return spec_of(self.topology)


@dataclass(frozen=True, slots=True)
class HomeStamp:
    """Differs when files of the home do that contents are made of."""

    keys: object
    data: object
    transfer_key: object


def stamp_of(spec: DnsSpec, home: Home, keys: ZoneKeys | None) -> HomeStamp:
    """Return that of the files as they are, and of what `keys` do."""
    return HomeStamp(
        None if keys is None else (keys.stage, keys.tags),
        [stamp_of_file(path) for path in geo_files(home, spec)],
        stamp_of_file(home.transfer_key(spec.zone)),
    )


def make_contents(
    topology: Topology, home: Home, now: float, before: ZoneContents | None
) -> ZoneContents:
    """Return the zone of a topology at a time (Unix seconds), after what was served `before`.
    Raises `CannotStart` or `ZoneError`."""
    spec = spec_of(topology)
    origin = origin_of(spec)
    keys = load_zone_keys(home.zone_key(spec.zone), now)
    stamp = stamp_of(spec, home, keys)
    was_signed = _signed_before(origin, before)
    if was_signed is not None and keys is None:
        raise CannotStart(
            f"the zone is signed, and its key {home.zone_key(spec.zone)} is gone: put it back. (To "
            "serve it unsigned, have the DS record taken from its parent, and start again.)"
        )
    serial = int(now) if before is None else max(int(now), before.serial + 1)
    known = _known(topology, home, now, stamp, before)
    places = places_of(topology, known)
    zone = zone_of(spec, places, serial, [] if keys is None else keys.records(origin))
    signed = None if keys is None else sign_zone(zone, keys, now, was_signed)
    key = load_transfer_key(home.transfer_key(spec.zone))
    if key is None and spec.secondaries:
        raise CannotStart("`secondaries` need a key: `skerry dns transfer-key` draws it")
    targets = [(each.address, each.port) for each in spec.secondaries]
    return ZoneContents(
        topology=topology,
        made_at=now,
        serial=serial,
        stamp=stamp,
        zone=zone,
        signed=signed,
        places=places,
        known=known,
        transfers=None if key is None else transfers_of(zone, spec, places, key, signed, now),
        notification=None if key is None else partial(notify, zone, key, targets),
    )


def by_measured(contents: ZoneContents, rtts: ClientRtts) -> ZoneContents:
    """Return the same with the measured round trips of networks that are nearest to another region
    by them; itself, where those networks are the same as before."""
    known = contents.known or KnownPlaces(())
    moved = contents.places.moved_by(rtts)
    if moved.keys() == known.measured.keys():
        return contents
    known = known.with_measured(moved)
    places = places_of(contents.topology, known)
    return replace(contents, known=known, places=places)


def spec_of(topology: Topology) -> DnsSpec:
    """Raises `CannotStart`."""
    if topology.dns is None:
        raise CannotStart("there is no `dns` section")
    return topology.dns


def _signed_before(origin: dns.name.Name, before: ZoneContents | None) -> SignedZone | None:
    """Return what the zone was signed by, as it stays so: without signatures who validates would
    refuse it validates, for as long as its parent has a DS record."""
    is_same_zone = before is not None and before.zone.origin == origin
    return before.signed if before is not None and is_same_zone else None


def _known(
    topology: Topology, home: Home, now: float, stamp: HomeStamp, before: ZoneContents | None
) -> KnownPlaces | None:
    """Return what is known of clients, read again where it is not what was read before."""
    if (
        before is not None
        and stamp.data == before.stamp.data
        and _places_in(topology) == _places_in(before.topology)
    ):
        return before.known
    known = open_known_places(home, topology)
    for each in () if known is None else known.sources:
        if is_old(each, now):
            logger.warning("%s is older than 60 days", each.path)
    return known


def _places_in(topology: Topology) -> object:
    """Return what a topology says that data on clients is read by."""
    spec = spec_of(topology)
    return spec.overrides, spec.clouds, spec.asn, topology.regions, topology.links
