"""A machine's key and certificate request, and files that only its owner may read."""

from __future__ import annotations

from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from skerry_regions.private_files import replace_file

PEM = serialization.Encoding.PEM


class JoinError(Exception):
    """The machine cannot join; the message says why and what to do."""


def kept_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return a key that is on disk before it is used: after a lost answer it proves that we are the
    same machine."""
    if not path.exists():
        replace_file(path, private_pem(ec.generate_private_key(ec.SECP256R1())))
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
    request = x509.CertificateSigningRequestBuilder().subject_name(common_name("machine"))
    return request.sign(key, hashes.SHA256()).public_bytes(PEM).decode()


def common_name(text: str) -> x509.Name:
    """Return the name of a certificate, or of a request for one."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a key as its file has it."""
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
