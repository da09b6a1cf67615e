"""Reading a zone file's text, and refusing what could not be served as it is written."""

from __future__ import annotations

import dns.exception
import dns.name
import dns.rdataclass
import dns.rdatatype
import dns.tokenizer
import dns.zone
import dns.zonefile


class ZoneError(ValueError):
    """A zone that cannot be served; the message says what is wrong."""


def read_zone_file(text: str, origin: dns.name.Name) -> dns.zone.Zone:
    """Parse the records of a zone. Raises `ZoneError`.

    Records outside of the zone are refused, which dnspython's own reader drops without a word. So
    is DNAME (RFC 6672), as answers are not made by it.
    """
    zone = dns.zone.Zone(origin, relativize=False)
    tokenizer = dns.tokenizer.Tokenizer(text, filename="records")
    try:
        with zone.writer(True) as writer:
            reader = dns.zonefile.Reader(tokenizer, dns.rdataclass.IN, writer)
            reader.zone_origin = dns.name.root  # nothing is outside of it
            _read(reader, origin)
        zone.check_origin()
    except ZoneError:
        raise
    except (dns.exception.DNSException, ValueError, KeyError) as error:
        raise ZoneError(f"zone {origin}: {str(error) or type(error).__name__}") from None
    for name, node in zone.nodes.items():
        if node.get_rdataset(dns.rdataclass.IN, dns.rdatatype.DNAME) is not None:
            raise ZoneError(f"zone {origin}: {name} has a DNAME record, which is not supported")
    return zone


def _read(reader: dns.zonefile.Reader, origin: dns.name.Name) -> None:
    try:
        reader.read()
    except KeyError:
        raise ZoneError(f"zone {origin}: {reader.last_name} is not in the zone") from None
