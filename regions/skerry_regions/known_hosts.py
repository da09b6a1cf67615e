"""What a listener is called, and by what: a web page may have its own name lead to any address.

A page whose name is resolved to this machine (DNS rebinding) is of the same origin as what listens
here, and reads its answers. It cannot change what the browser writes into `Host`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping

from skerry_regions.address import is_loopback

HOST = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,252}|[0-9A-Fa-f:.]{2,45}")
MISDIRECTED = 421
BINDING_HOST = "workers-binding.ai"  # what a Worker's runtime calls whatever `env.AI` leads to


def host_of(field: str) -> str:
    """Return the name or address in a `Host` header, in lower case, without port and brackets."""
    host = field.strip().lower()
    name, _, port = host.rpartition(":")
    if port.isdecimal() and (":" not in name or name.endswith("]")):
        host = name
    return host.strip("[]").rstrip(".")


def is_known_host(field: str, known: Iterable[str] = (), own: str = "") -> bool:
    """Return whether a `Host` header means us: a name of this machine, or one of those `known`.

    So does `own`, the address that the connection came to: a page that is at an address has not
    been resolved to it.
    """
    host = host_of(field)
    return is_loopback(host) or host in known or (bool(own) and _is_address(host, own))


def comes_from_page(headers: Mapping[str, str]) -> bool:
    """Return whether a browser sends a request for a web page; no other program says so.

    `headers` are found by names in lower case. A form of any page needs no consent to be sent.
    """
    return "origin" in headers or headers.get("sec-fetch-site", "none") != "none"


def hosts_of(text: str) -> frozenset[str]:
    """Return names and addresses that commas separate. Raises ValueError for what is neither."""
    hosts = [each.strip() for each in text.split(",") if each.strip()]
    for host in hosts:
        if not HOST.fullmatch(host.strip("[]")):
            raise ValueError(f"{host[:100]!r} is not a host such as ai.example.com, without a port")
    return frozenset(map(host_of, hosts))


def _is_address(host: str, own: str) -> bool:
    try:
        return ipaddress.ip_address(host) == ipaddress.ip_address(own)
    except ValueError:
        return False
