"""The key that signs a zone: ECDSA P-256 (algorithm 13), one for everything in it.

Needs `cryptography` (the extra `dnssec`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import dns.dnssec
import dns.name
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from dns.dnssectypes import Algorithm
from dns.rdtypes.ANY.DNSKEY import DNSKEY
from dns.rdtypes.dnskeybase import Flag

ALGORITHM = Algorithm.ECDSAP256SHA256
MAX_BYTES = 4096
TTL = 3600  # seconds, of what is published of keys


class KeyUnusable(Exception):
    """A key file that cannot be read or made; the message says why."""


class ZoneKey:
    """A private key and its DNSKEY record."""

    def __init__(self, private: ec.EllipticCurvePrivateKey) -> None:
        self.private = private
        flags = Flag.ZONE | Flag.SEP  # one key signs both the keys and the records
        self.dnskey: DNSKEY = dns.dnssec.make_dnskey(private.public_key(), ALGORITHM, flags)

    @property
    def tag(self) -> int:
        """Return the key tag (RFC 4034, appendix B)."""
        return dns.dnssec.key_id(self.dnskey)

    @classmethod
    def create(cls, path: Path) -> ZoneKey:
        """Draw a key and keep it in a new file that only its owner can read.

        Raises `KeyUnusable`, also when the file is there.
        """
        private = ec.generate_private_key(ec.SECP256R1())
        text = private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as f:
                f.write(text)
                f.flush()
                os.fsync(f.fileno())
        except OSError as error:
            raise KeyUnusable(f"cannot write {path}: {error.strerror}") from None
        return cls(private)

    @classmethod
    def load(cls, path: Path) -> ZoneKey:
        """Raises `KeyUnusable`, also when others than the owner could read the file."""
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_mode & 0o077:
                    raise KeyUnusable(f"others may read {path}: `chmod 600 {path}` keeps it secret")
                private = serialization.load_pem_private_key(file.read(MAX_BYTES), None)
        except OSError as error:
            raise KeyUnusable(f"cannot read {path}: {error.strerror}") from None
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise KeyUnusable(f"{path} holds no private key in PEM") from None
        if not isinstance(private, ec.EllipticCurvePrivateKey) or private.curve.name != "secp256r1":
            raise KeyUnusable(f"{path} holds no P-256 key")
        return cls(private)

    def ds(self, origin: dns.name.Name) -> str:
        """Return the DS record that belongs into the parent zone, as a line of a zone file."""
        return f"{origin} IN DS {dns.dnssec.make_ds(origin, self.dnskey, 'SHA256')}"

    def records(self, origin: dns.name.Name) -> list[str]:
        """Return DNSKEY, and CDS and CDNSKEY for parents that look for them (RFC 7344)."""
        cds = dns.dnssec.make_cds(origin, self.dnskey, "SHA256")
        cdnskey = dns.dnssec.make_cdnskey(
            self.private.public_key(), ALGORITHM, cast(Flag, self.dnskey.flags)
        )
        return [
            self.dnskey_line,
            f"@ {TTL} IN CDS {cds}",
            f"@ {TTL} IN CDNSKEY {cdnskey}",
        ]

    @property
    def dnskey_line(self) -> str:
        """Return it as in a zone file."""
        return f"@ {TTL} IN DNSKEY {self.dnskey}"
