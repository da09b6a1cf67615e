"""The certificate of one run of a plugin, as Terraform's AutoMTLS wants it."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NAME = "localhost"  # what Terraform checks
LIFETIME = timedelta(days=30)
CLOCK_SKEW = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """Self-signed, EC P-256; the key never leaves the process."""

    key: bytes  # PEM
    chain: bytes  # PEM
    handshake: str  # DER in base64 without padding


def new_certificate() -> ServerCertificate:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    now = datetime.now(UTC)
    usage = x509.KeyUsage(
        digital_signature=True, key_encipherment=True, key_agreement=True, key_cert_sign=True,
        content_commitment=False, data_encipherment=False, crl_sign=False, encipher_only=False,
        decipher_only=False,
    )  # fmt: skip
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    der = certificate.public_bytes(serialization.Encoding.DER)
    return ServerCertificate(
        key=key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
        chain=certificate.public_bytes(serialization.Encoding.PEM),
        handshake=base64.b64encode(der).rstrip(b"=").decode(),
    )
