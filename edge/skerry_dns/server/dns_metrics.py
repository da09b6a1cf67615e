"""What a DNS server counts, for Prometheus. `docs/telemetry.md` lists it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import dns.rcode
from dns.rdtypes.ANY.SOA import SOA

from skerry_dns.server.dns_server import DnsServer
from skerry_regions.prometheus import Gauge, LabelValues, Metric, ReadCounter, ReadGauge

FAST, SLOW = "fast", "slow"  # paths

Numbers = dict[LabelValues, float]


class DnsMetrics:
    """Of one server: of its workers (the fast path), and of its event loop (the slow one)."""

    def __init__(self, server: DnsServer) -> None:
        self._server = server

    def families(self) -> list[Metric]:
        """Return all of them, for an exposition."""
        return [
            ReadCounter(
                "skerry_dns_answers_total",
                "Answers, by who gave them and code.",
                ("path", "code"),
                self._answers,
            ),
            ReadCounter(
                "skerry_dns_unanswered_total",
                "Packets that were no query, were above the limits, could not be sent, or were "
                "lost on the way to the slow path.",
                ("path", "reason"),
                self._unanswered,
            ),
            ReadCounter(
                "skerry_dns_left_total",
                "Queries that the fast path left to the slow one.",
                (),
                lambda: {(): self._events().get("slow", 0)},
            ),
            ReadGauge(
                "skerry_dns_fast_path",
                "1 while the fast path, where there is one, answers all that is served now.",
                (),
                self._is_current,
            ),
            Gauge(
                "skerry_dns_streams",
                "TCP connections that are open.",
                lambda: self._server.streams.total(),
            ),
            ReadGauge("skerry_dns_zone_serial", "Of its SOA record.", ("zone",), self._serials),
            ReadGauge(
                "skerry_dns_region_up",
                "1 where a region's edges answer, 0 where DNS has left it.",
                ("region",),
                lambda: self._regions(self._server.responder.places.state.down, 0.0),
            ),
            ReadGauge(
                "skerry_dns_region_busy",
                "1 where work waits in a region for so long that it comes last.",
                ("region",),
                lambda: self._regions(self._server.responder.places.state.busy, 1.0),
            ),
        ]

    def _events(self) -> Mapping[str, int]:
        return {} if self._server.fast is None else self._server.fast.events()

    def _is_current(self) -> Numbers:
        fast = self._server.fast
        return {} if fast is None else {(): float(fast.current.is_set())}

    def _answers(self) -> Numbers:
        fast = {} if self._server.fast is None else self._server.fast.answers()
        slow = self._server.responder.counters.answers
        return {
            **{(FAST, dns.rcode.to_text(dns.rcode.Rcode(code))): n for code, n in fast.items()},
            **{(SLOW, code): n for code, n in slow.items()},
        }

    def _unanswered(self) -> Numbers:
        fast, slow = self._events(), self._server.responder.counters
        return {
            (FAST, "ignored"): fast.get("ignored", 0),
            (FAST, "limited"): fast.get("dropped", 0),
            (FAST, "unsent"): fast.get("unsent", 0),
            (FAST, "lost"): fast.get("slow_lost", 0),
            (SLOW, "ignored"): slow.ignored,
            (SLOW, "limited"): slow.dropped,
        }

    def _serials(self) -> Numbers:
        return {
            (zone.origin.to_text(omit_final_dot=True),): cast(SOA, zone.negative_soa[0]).serial
            for zone in self._server.responder.zones
        }

    def _regions(self, named: frozenset[str], value: float) -> Numbers:
        """Return `value` for those that are named, the other one for the rest."""
        regions = self._server.responder.places.regions
        return {(name,): value if name in named else 1.0 - value for name in regions}
