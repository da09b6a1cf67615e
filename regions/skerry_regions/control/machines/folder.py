"""A machine's key and certificate request, and files that only its owner may read."""

from __future__ import annotations

from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from skerry_regions.private_files import replace_file


class JoinError(Exception):
    """The machine cannot join; the message says why and what to do."""


def kept_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return a key that is on disk before it is used: after a lost answer it proves that we are the
    same machine."""
    if not path.exists():
        key = ec.generate_private_key(ec.SECP256R1())
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        replace_file(path, pem)
    return load_key(path)


def load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise JoinError(f"{path} is damaged: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise JoinError(f"{path} has a key of another kind than P-256")
    return key


def certificate_request(key: ec.EllipticCurvePrivateKey) -> str:
    """Return a certificate request; the control plane decides on the name."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "machine")])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM).decode()
