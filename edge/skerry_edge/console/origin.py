"""Whom the console is shown to, and which requests are its own pages'."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from skerry.errors import PermissionDenied
from skerry_regions.address import is_loopback
from skerry_regions.known_hosts import host_of, is_known_host
from skerry_regions.spec_types import ConsoleMode

OWN_HEADER = "x-skerry-console"  # no form and no page of others can send it
FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; object-src 'none'; form-action 'self'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def is_shown(scope: Scope, headers: Headers, mode: ConsoleMode, hosts: frozenset[str]) -> bool:
    """Return whether the console is there for who sends a request.

    On loopback both ends of the connection are this machine's, by a name of this machine: a proxy
    before it does not open it to others by accident. `hosts` are names that the edge answers to,
    where it is `on`; none: every name.
    """
    host, server, client = headers.get("host", ""), scope.get("server"), scope.get("client")
    if mode == "on":
        return not hosts or is_known_host(host, hosts, server[0] if server else "")
    return (
        mode == "loopback"
        and all(end is not None and is_loopback(end[0]) for end in (server, client))
        and is_loopback(host_of(host))
        and not any(each in headers for each in FORWARDED)
    )


def leads_there(url: str, headers: Headers) -> bool:
    """Return whether an address means to a request's sender what it means here: one of loopback is
    that of each machine."""
    host = urlsplit(url).hostname or ""
    return not is_loopback(host) or is_loopback(host_of(headers.get("host", "")))


def check_own(scope: Scope, headers: Headers) -> None:
    """Raise PermissionDenied for a request that a page of the console did not send."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
    own = f"{scope.get('scheme', 'http')}://{headers.get('host', '')}"
    if headers.get(OWN_HEADER) != "1" or site != "same-origin" or origin not in (None, own):
        raise PermissionDenied("This is for pages of the console alone.")
