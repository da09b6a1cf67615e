"""The key by which secondaries get a zone, in a file that other name servers can read as well."""

from __future__ import annotations

import base64
import os
import re
import secrets
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import dns.exception
import dns.name
import dns.tsig

from skerry_cli.home.errors import CannotStart
from skerry_cli.home.state import Home
from skerry_cli.output import note
from skerry_dns.transfer.transfer import Transfers
from skerry_dns.zone import place_records
from skerry_dns.zone.zone import Zone
from skerry_regions.geo.places import Places
from skerry_regions.topology.zone_spec import DnsSpec

if TYPE_CHECKING:
    from skerry_dns.signing.signed_zone import SignedZone

SECRET_BYTES = 32
MAX_BYTES = 4096
_KEY = re.compile(
    r'\s*key "([\w.-]{1,253})" \{\s*algorithm hmac-sha256;\s*'
    r'secret "([A-Za-z0-9+/=]{24,200})";\s*\};\s*'
)


def transfer_keygen(zone: str, home: Home) -> None:
    """Draw the key, unless there is one. Raises `CannotStart`."""
    path = home.transfer_key(zone)
    if load_transfer_key(path) is None:
        secret = base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()
        name = f"transfer.{zone.rstrip('.').lower()}"
        text = f'key "{name}" {{\n    algorithm hmac-sha256;\n    secret "{secret}";\n}};\n'
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(text)
        except OSError as error:
            raise CannotStart(f"cannot write {path}: {error.strerror}") from None
    note(f"Secondaries of {zone} need the key in {path}, in the syntax of BIND.")


def load_transfer_key(path: Path) -> dns.tsig.Key | None:
    """Return the key, or None where there is no file.

    Raises `CannotStart`, also when others than the owner could read it.
    """
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise CannotStart(f"others may read {path}: `chmod 600 {path}` keeps it secret")
            match = _KEY.fullmatch(file.read(MAX_BYTES).decode("ascii", "replace"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CannotStart(f"cannot read {path}: {error.strerror}") from None
    try:
        if match is None:
            raise ValueError("not a key")
        secret = base64.b64decode(match[2], validate=True)
        return dns.tsig.Key(dns.name.from_text(match[1]), secret, dns.tsig.HMAC_SHA256)
    except (ValueError, dns.exception.DNSException):
        raise CannotStart(f"{path} holds no HMAC-SHA256 key in the syntax of BIND") from None


def transfers_of(
    zone: Zone,
    spec: DnsSpec,
    places: Places,
    key: dns.tsig.Key,
    signed: SignedZone | None,
    now: float,
) -> Transfers:
    """Return those of a zone: names that are answered by place go out with the addresses of all
    regions.

    A signed one goes out as it is signed at `now` (Unix seconds).
    """
    names = [dns.name.from_text(name, zone.origin) for name in spec.names]
    everywhere = [
        rrset for name in names for rrset in place_records.everywhere(places, name, spec.ttl)
    ]
    if signed is None:
        return Transfers({zone.origin: partial(zone.transferred, everywhere)}, key)
    records = list(signed.transferred(everywhere, now))
    return Transfers({zone.origin: lambda: iter(records)}, key)
