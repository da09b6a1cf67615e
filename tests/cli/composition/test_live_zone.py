"""A zone that is replaced while it is served."""

from __future__ import annotations

import asyncio
import ipaddress
import threading
from pathlib import Path

import dns.message
import dns.rdata
import dns.rdatatype
import msgspec
import pytest

from skerry_cli.composition.dns import zone_contents
from skerry_cli.composition.dns.live_zone import LiveZone
from skerry_cli.home.dns.signing import sign_zone
from skerry_cli.home.errors import CannotStart
from skerry_cli.home.state import Home
from skerry_dns.signing.signed_zone import SignedZone
from skerry_dns.signing.zone_key import ZoneKey
from skerry_dns.signing.zone_keys import KeyFiles, ZoneKeys
from skerry_dns.zone.zone import Zone
from skerry_regions.geo.places import State
from skerry_regions.topology.loading import decode_topology
from skerry_regions.topology.spec import Topology

SOMEBODY = ipaddress.ip_address("192.0.2.99")
START = 1_800_000_000.0


def topology(address: str, zone: str = "example.test") -> Topology:
    document = {
        "regions": [{"name": "fra", "iata": "FRA"}],
        "edges": [{"name": "a", "region": "fra", "addresses": ["192.0.2.1"]}],
        "dns": {
            "zone": zone,
            "nameservers": [{"name": "ns1"}],
            "records": [f"www IN A {address}"],
        },
    }
    return decode_topology(msgspec.json.encode(document))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    home.create()
    return home


def live_zone(home: Home) -> LiveZone:
    return LiveZone(home, b"", str, clock=lambda: START)


def records(live: LiveZone, name: str, rdtype: str = "A") -> list[dns.rdata.Rdata]:
    """Those of an answer with signatures."""
    question = dns.message.make_query(name, rdtype, want_dnssec=True)
    wire = live.responder.respond(question.to_wire(), SOMEBODY, stream=True)
    assert wire is not None
    return [record for rrset in dns.message.from_wire(wire).answer for record in rrset]


def asked(live: LiveZone, name: str = "www.example.test") -> list[str]:
    """An address, and that it is signed."""
    return [
        record.to_text() if record.rdtype == dns.rdatatype.A else "RRSIG"
        for record in records(live, name)
    ]


def test_what_is_served_goes_on_while_a_zone_is_signed(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    ZoneKey.create(home.zone_key("example.test"))
    signing, may_sign = threading.Event(), threading.Event()

    def sign(zone: Zone, keys: ZoneKeys, now: float, before: SignedZone | None) -> SignedZone:
        signing.set()
        assert may_sign.wait(60)
        return sign_zone(zone, keys, now, before)

    async def main() -> None:
        live = live_zone(home)
        await live.adopt(topology("192.0.2.80"))
        live.responder.places.state = State(down=frozenset({"fra"}))
        monkeypatch.setattr(zone_contents, "sign_zone", sign)
        changing = asyncio.create_task(live.adopt(topology("192.0.2.81")))
        assert await asyncio.to_thread(signing.wait, 60)
        last = asyncio.create_task(live.adopt(topology("192.0.2.82")))
        assert asked(live) == ["192.0.2.80", "RRSIG"]
        may_sign.set()
        await changing
        assert asked(live) == ["192.0.2.81", "RRSIG"]
        await last
        assert asked(live) == ["192.0.2.82", "RRSIG"]
        assert live.responder.places.state.down == {"fra"}
        soa, _ = records(live, "example.test", "SOA")
        assert soa.to_text().split()[2] == str(int(START) + 2)

    asyncio.run(main())


def test_a_signed_zone_is_not_served_unsigned(home: Home) -> None:
    async def main() -> None:
        live = live_zone(home)
        key = home.zone_key("example.test")
        ZoneKey.create(key)
        await live.adopt(topology("192.0.2.80"))
        key.rename(key.with_name("elsewhere"))
        with pytest.raises(CannotStart, match=r"its key .*example\.test\.key is gone: put it back"):
            await live.adopt(topology("192.0.2.81"))
        assert asked(live) == ["192.0.2.80", "RRSIG"]
        key.with_name("elsewhere").rename(key)
        await live.adopt(topology("192.0.2.81"))
        assert asked(live) == ["192.0.2.81", "RRSIG"]
        await live.adopt(topology("192.0.2.81", zone="other.test"))  # which never had a key
        assert asked(live, "www.other.test") == ["192.0.2.81"]

    asyncio.run(main())


def test_what_has_not_changed_is_not_signed_again(home: Home) -> None:
    async def main() -> None:
        live = live_zone(home)
        key = home.zone_key("example.test")
        ZoneKey.create(key)
        await live.adopt(topology("192.0.2.80"))
        before = records(live, "example.test", "NS")
        await live.adopt(topology("192.0.2.81"))
        assert asked(live) == ["192.0.2.81", "RRSIG"]
        assert records(live, "example.test", "NS") == before  # no two signatures are the same
        key.unlink()
        ZoneKey.create(key)
        await live.adopt(topology("192.0.2.81"))
        names, signature = records(live, "example.test", "NS")
        assert names == before[0]
        assert signature != before[1]

    asyncio.run(main())


def test_a_key_that_is_missing_beside_others_is_told(home: Home) -> None:
    path = home.zone_key("example.test")
    ZoneKey.create(path)
    KeyFiles(path).roll(START)
    path.unlink()

    async def main() -> None:
        with pytest.raises(CannotStart, match=r"cannot read .*example\.test\.key: No such file"):
            await live_zone(home).adopt(topology("192.0.2.80"))

    asyncio.run(main())


def test_files_that_change_lead_to_another_zone(home: Home) -> None:
    async def main() -> None:
        live = live_zone(home)
        await live.adopt(topology("192.0.2.80"))
        before = await live.served
        await live.look_at_files()
        assert asked(live) == ["192.0.2.80"]
        ZoneKey.create(home.zone_key("example.test"))
        await live.look_at_files()
        assert asked(live) == ["192.0.2.80", "RRSIG"]
        [zone] = live.responder.zones
        assert zone is not before.zone
        await live.look_at_files()
        assert live.responder.zones == (zone,)

    asyncio.run(main())
