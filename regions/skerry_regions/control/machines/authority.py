"""The control plane's own certificate authority.

It says which machines may call, and shows machines that they call the control plane. Keys are of
the curve P-256. Certificates of machines are short-lived and renewed long before they expire; that
of the authority itself is what join tokens name, by its fingerprint.

    SKERRY_HOME/authority.pem    its key and certificate, readable by its owner only
"""

from __future__ import annotations

import datetime
import logging
import ssl
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from skerry_regions.control.machines.folder import PEM, common_name, private_pem
from skerry_regions.control.machines.messages import SERVER_NAME
from skerry_regions.private_files import create_file
from skerry_regions.wire.link_certificates import MACHINE_URI, RUNS_URI
from skerry_regions.wire.link_files import PARTIAL_CHAIN

DAY = 86_400.0
AUTHORITY_SECONDS = 3650 * DAY
SERVER_SECONDS = 30 * DAY
MACHINE_SECONDS = 6 * DAY  # links need it: the control plane may be away for half of that
SKEW_SECONDS = 3600.0  # that clocks of machines may be behind ours
NO_CHECK_TIME = ssl.VerifyFlags(0x200000)  # of OpenSSL; Python has no name for it

logger = logging.getLogger(__name__)


class AuthorityError(Exception):
    """Its file cannot be used; the message names it."""


class BadRequest(ValueError):
    """A certificate request that is none, or not of a kind that we sign."""


@dataclass(frozen=True, slots=True)
class Signed:
    """A certificate for a machine."""

    pem: str
    not_after: float  # Unix seconds


@dataclass(frozen=True, slots=True)
class Peer:
    """The machine of a certificate of ours, which may have expired."""

    machine: str
    not_after: float  # Unix seconds


class Authority:
    """Signs certificates."""

    def __init__(
        self,
        key: ec.EllipticCurvePrivateKey,
        certificate: x509.Certificate,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._key = key
        self._certificate = certificate
        self._clock = clock

    @classmethod
    def open(cls, path: Path, clock: Callable[[], float] = time.time) -> Authority:
        """Return the authority of this file, made on first use. Raises AuthorityError."""
        try:
            if not path.exists():
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                create_file(path, _new_authority(clock()))
            if path.stat().st_mode & 0o077:
                raise AuthorityError(f"others may read {path}: `chmod 600 {path}` keeps it secret")
            data = path.read_bytes()
            key = serialization.load_pem_private_key(data, password=None)
            certificate = x509.load_pem_x509_certificate(data)
        except OSError as error:
            raise AuthorityError(f"{path}: {error.strerror}") from None
        except (ValueError, TypeError) as error:
            raise AuthorityError(f"{path} is damaged: {error}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise AuthorityError(f"{path} has a key of another kind than P-256")
        return cls(key, certificate, clock)

    @property
    def pem(self) -> str:
        """Return its certificate."""
        return self._certificate.public_bytes(PEM).decode()

    @property
    def not_after(self) -> float:
        """Return when its certificate ends, in Unix seconds."""
        return self._certificate.not_valid_after_utc.timestamp()

    @property
    def fingerprint(self) -> str:
        """Return the SHA-256 of its certificate, in hex: what join tokens name."""
        return self._certificate.fingerprint(hashes.SHA256()).hex()

    def sign(self, request: x509.CertificateSigningRequest, machine: str, *runs: str) -> Signed:
        """Return a certificate for a machine, whatever name the request has, and for what it `runs`
        (`edge`, `node`): for calling the control plane, and for both ends of links."""
        uris = (f"{MACHINE_URI}{machine}", *(f"{RUNS_URI}{each}" for each in runs))
        certificate = self._issue(
            request.public_key(),
            "Skerry machine",
            (ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH),
            MACHINE_SECONDS,
            map(x509.UniformResourceIdentifier, uris),
        )
        not_after = certificate.not_valid_after_utc.timestamp()
        return Signed(certificate.public_bytes(PEM).decode(), not_after)

    def server_pair(self) -> bytes:
        """Return a new key and its certificate for the listener that machines call."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._issue(
            key.public_key(),
            SERVER_NAME,
            (ExtendedKeyUsageOID.SERVER_AUTH,),
            SERVER_SECONDS,
            (x509.DNSName(SERVER_NAME),),
        )
        return private_pem(key) + certificate.public_bytes(PEM)

    def peer(self, pem: str) -> Peer | None:
        """Return whose certificate this is; None when we have not signed it for a machine."""
        try:
            certificate = x509.load_pem_x509_certificate(pem.encode())
            certificate.verify_directly_issued_by(self._certificate)
            usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage)
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
            uris = names.value.get_values_for_type(x509.UniformResourceIdentifier)
            [uri] = (uri for uri in uris if uri.startswith(MACHINE_URI))
        except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
            return None
        if ExtendedKeyUsageOID.CLIENT_AUTH not in usage.value:
            return None
        return Peer(uri.removeprefix(MACHINE_URI), certificate.not_valid_after_utc.timestamp())

    def _issue(
        self,
        public_key: object,
        name: str,
        usages: Iterable[x509.ObjectIdentifier],
        seconds: float,
        names: Iterable[x509.GeneralName],
    ) -> x509.Certificate:
        assert isinstance(public_key, ec.EllipticCurvePublicKey)
        issuer = self._key.public_key()
        return (
            _builder(name, self._certificate.subject, public_key, self._clock(), seconds)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )


class ListenerTLS:
    """What the listener shows and requires: a certificate of ours, and one of the machine's if it
    has one. Renews its own by itself."""

    def __init__(self, authority: Authority, clock: Callable[[], float] = time.time) -> None:
        self._authority = authority
        self._clock = clock
        self.context = self._renewed()
        self.context.sni_callback = self._choose  # the context for good; it only chooses

    def _renewed(self) -> ssl.SSLContext:
        """Return the context in force. Whether a certificate is over is not judged here: it may
        still be renewed."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_OPTIONAL
        context.verify_flags |= NO_CHECK_TIME | PARTIAL_CHAIN
        context.load_verify_locations(cadata=self._authority.pem)
        context.set_alpn_protocols(["http/1.1"])
        load_pair(context, self._authority.server_pair())
        self._until, self._current = self._clock() + SERVER_SECONDS / 2, context
        return context

    def _choose(
        self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, _: ssl.SSLContext
    ) -> None:
        if self._clock() >= self._until:
            try:
                self._renewed()
            except OSError as error:  # a full disk: the former one serves as long again
                logger.warning("the certificate of the listener was not renewed: %s", error)
        connection.context = self._current


def load_pair(context: ssl.SSLContext, pair: bytes) -> None:
    """Load a key and its certificate from memory: Python takes them from files only."""
    with tempfile.NamedTemporaryFile() as file:  # readable by its owner only
        file.write(pair)
        file.flush()
        context.load_cert_chain(file.name)


def read_request(text: str) -> x509.CertificateSigningRequest:
    """Return a certificate request of a machine. Raises BadRequest."""
    try:
        request = x509.load_pem_x509_csr(text.encode())
        key = request.public_key()
        is_valid = request.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadRequest(f"the certificate request cannot be read: {error}") from None
    if not (isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)):
        raise BadRequest("the certificate request's key is not of the curve P-256")
    if not is_valid:
        raise BadRequest("the certificate request is not signed with its own key")
    return request


def key_digest(request: x509.CertificateSigningRequest) -> str:
    """Return what names the key of a request."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    data = request.public_key().public_bytes(serialization.Encoding.DER, form)
    digest = hashes.Hash(hashes.SHA256())
    digest.update(data)
    return digest.finalize().hex()


def _new_authority(now: float) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = "Skerry control plane"
    public_key = key.public_key()
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        _builder(name, common_name(name), public_key, now, AUTHORITY_SECONDS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .sign(key, hashes.SHA256())
    )
    return private_pem(key) + certificate.public_bytes(PEM)


def _builder(
    name: str,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    now: float,
    seconds: float,
) -> x509.CertificateBuilder:
    begin, end = (
        datetime.datetime.fromtimestamp(at, datetime.UTC)
        for at in (now - SKEW_SECONDS, now + seconds)
    )
    return (
        x509.CertificateBuilder()
        .subject_name(common_name(name))
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
    )
