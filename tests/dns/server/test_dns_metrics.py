"""Metrics of a DNS server, as Prometheus reads them."""

from __future__ import annotations

from tests.dns.example import RESOLVER, query, responder

from skerry_dns.server.dns_metrics import DnsMetrics
from skerry_dns.server.dns_server import DnsServer
from skerry_regions.geo.places import State
from skerry_regions.prometheus import exposition


def test_without_a_fast_path() -> None:
    server = DnsServer(responder(per_second=20))
    for sent in (query("ai"), query("static"), query("nothing"), b"", query("ai")[:20]):
        server.responder.respond(sent, RESOLVER, stream=True)
    for _ in range(60):
        server.responder.respond(query("static"), RESOLVER, stream=False)
    server.responder.places.state = State(down=frozenset({"fra"}), busy=frozenset({"nrt"}))
    told = exposition(DnsMetrics(server).families()).decode().splitlines()
    assert [each for each in told if not each.startswith("#")] == [
        'skerry_dns_answers_total{path="slow",code="NOERROR"} 42',
        'skerry_dns_answers_total{path="slow",code="NXDOMAIN"} 1',
        'skerry_dns_answers_total{path="slow",code="FORMERR"} 1',
        'skerry_dns_unanswered_total{path="fast",reason="ignored"} 0',
        'skerry_dns_unanswered_total{path="fast",reason="limited"} 0',
        'skerry_dns_unanswered_total{path="fast",reason="unsent"} 0',
        'skerry_dns_unanswered_total{path="fast",reason="lost"} 0',
        'skerry_dns_unanswered_total{path="slow",reason="ignored"} 1',
        'skerry_dns_unanswered_total{path="slow",reason="limited"} 20',
        "skerry_dns_left_total 0",
        "skerry_dns_streams 0",
        'skerry_dns_zone_serial{zone="example.test"} 1',
        'skerry_dns_region_up{region="fra"} 0',
        'skerry_dns_region_up{region="iad"} 1',
        'skerry_dns_region_up{region="nrt"} 1',
        'skerry_dns_region_busy{region="fra"} 0',
        'skerry_dns_region_busy{region="iad"} 0',
        'skerry_dns_region_busy{region="nrt"} 1',
    ]
