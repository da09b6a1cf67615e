"""The `dns` section of a topology: what it becomes, and what is refused."""

from __future__ import annotations

import ipaddress

import dns.name
import dns.rdatatype
import pytest

from skerry_dns.zone.from_topology import zone_of
from skerry_dns.zone.zone import Kind
from skerry_dns.zone.zone_file import ZoneError
from skerry_regions.geo.from_topology import places_of
from skerry_regions.geo.places import State
from skerry_regions.geo.ranking import ClientOrigin
from skerry_regions.topology.loading import TopologyError, parse_topology
from skerry_regions.topology.spec import Topology
from skerry_regions.topology.zone_spec import DnsSpec

TOPOLOGY = b"""\
regions:
  - {name: fra, iata: FRA, residency: eu}
  - {name: iad, iata: IAD, residency: us}
edges:
  - {name: a, region: fra, addresses: [192.0.2.1, "2001:db8::1"]}
  - {name: b, region: iad, host: 192.0.2.2}
  - {name: c, region: iad, host: 0.0.0.0}
links: [{between: [fra, iad], rtt: 0.09}]
dns:
  zone: example.test
  nameservers: [{name: ns1, addresses: [192.0.2.53]}, {name: ns.elsewhere.test.}]
  nets:
    - {net: 198.51.100.0/24, region: iad}
    - {net: 203.0.113.0/24, coordinates: [52.5, 13.4], residency: us}
  records: ['www 300 IN CNAME ai']
"""


def spec_of(topology: Topology) -> DnsSpec:
    assert topology.dns is not None
    return topology.dns


def test_zone_and_places() -> None:
    topology = parse_topology(TOPOLOGY)
    places = places_of(topology)
    zone = zone_of(spec_of(topology), places, serial=7)
    [soa] = zone.find(zone.origin, dns.rdatatype.SOA).answer
    assert soa.to_text() == (
        "example.test. 86400 IN SOA ns1.example.test. hostmaster.example.test. "
        "7 7200 900 1209600 30"
    )
    assert zone.find(dns.name.from_text("ai", zone.origin), dns.rdatatype.A).kind is Kind.GEO
    found = zone.find(dns.name.from_text("ns1", zone.origin), dns.rdatatype.A)
    assert found.answer[0].to_text() == "ns1.example.test. 86400 IN A 192.0.2.53"

    assert {name: [str(a) for a in site.addresses] for name, site in places._sites.items()} == {
        "fra": ["192.0.2.1", "2001:db8::1"],
        "iad": ["192.0.2.2"],
    }
    [client, _] = places.locate(ipaddress.ip_address("198.51.100.7"))
    assert (client.region, client.rtt) == ("iad", {"iad": 0.0002, "fra": 0.09})
    places.state = State(rtts={"iad": {"fra": 0.0001}})
    assert places.order(client) == ["fra", "iad"]
    assert places.order(ClientOrigin(location=(38.94, -77.46))) == ["iad", "fra"]
    client, scope = places.locate(next(iter(site.addresses[0] for site in places._sites.values())))
    assert (client, scope) == (ClientOrigin(), 6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((b"198.51.100.0/24", b"198.51.100.1/24"), "t:13: dns.nets[0].net: 198.51.100.1/24 has"),
        (
            (b"region: iad}\n    - {net: 203", b"region: x}\n    - {net: 203"),
            "t:13: dns.nets[0].reg",
        ),
        ((b", region: iad}\n    -", b"}\n    -"), "t:13: dns.nets[0]: give either `region` or"),
        ((b"[192.0.2.53]", b"[nowhere]"), "t:11: dns.nameservers[0].addresses[0]: 'nowhere' does"),
        ((b"[192.0.2.1,", b"[192.0.2.1111,"), "t:5: edges[0].addresses[0]: '192.0.2.1111' does"),
        ((b"zone: example.test", b"zone: 'ex ample'"), "t:10: dns.zone: Expected `str` matching"),
    ],
)
def test_mistakes_are_named_by_line_and_key(change: tuple[bytes, bytes], message: str) -> None:
    text = TOPOLOGY.replace(*change, 1)
    assert text != TOPOLOGY
    with pytest.raises(TopologyError) as caught:
        parse_topology(text, source="t")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((b"www 300 IN CNAME ai", b"www 300 IN BOGUS x"), "zone example.test.: "),
        ((b"www 300 IN CNAME ai", b"ai 300 IN A 192.0.2.9"), "static A too"),
        ((b"www 300 IN CNAME ai", b"out.side. 300 IN A 127.0.0.9"), r"out\.side\. is not in the"),
        ((b"www 300 IN CNAME ai", b"dn 300 IN DNAME www"), "DNAME record, which is not supp"),
        ((b"www 300 IN CNAME ai", b"www 300 IN CNAME www"), "is an alias of itself"),
        ((b"www 300 IN CNAME ai", b"*.w 300 IN CNAME x.w"), "is an alias of more than 8 names"),
        ((b"www 300 IN CNAME ai", b"$INCLUDE /etc/passwd"), "zone example.test.: "),
        ((b"zone: example.test", b"zone: example..test"), "'example..test' is no name"),
        ((b"zone: example.test", b"zone: example.test\n  names: [a..b]"), "'a..b' is no name"),
    ],
)
def test_records_that_make_no_zone(change: tuple[bytes, bytes], message: str) -> None:
    topology = parse_topology(TOPOLOGY.replace(*change, 1))
    with pytest.raises(ZoneError, match=message):
        zone_of(spec_of(topology), places_of(topology), serial=1)


def test_nowhere_to_send_clients() -> None:
    text = TOPOLOGY.replace(b', addresses: [192.0.2.1, "2001:db8::1"]', b", host: localhost")
    text = text.replace(b"host: 192.0.2.2", b"host: '::'")
    places = places_of(parse_topology(text))
    assert (places.regions, places.order(ClientOrigin())) == ((), [])
