"""Files of certificates, and what they make of a TLS connection.

FOLDER/certificate.pem   (or tls.crt)   this machine's, with intermediates behind it
FOLDER/key.pem           (or tls.key)   its key
FOLDER/authority.pem     (or ca.crt)    whose certificates it believes; one or more
FOLDER/revoked                          machines that are shut out, one a line; may be missing
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

PARTIAL_CHAIN = ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN  # an intermediate may be the authority


class BadCertificates(Exception):
    """Files that cannot be used; the message names one."""


@dataclass(frozen=True, slots=True)
class LinkFiles:
    """Files of a link's certificate, key and authority."""

    certificate: Path
    key: Path
    authority: Path
    revoked: Path

    @classmethod
    def joined(cls, folder: Path) -> LinkFiles:
        """Return what joining leaves in a folder."""
        return cls(
            certificate=folder / "certificate.pem",
            key=folder / "key.pem",
            authority=folder / "authority.pem",
            revoked=folder / "revoked",
        )

    @classmethod
    def given(cls, folder: Path) -> LinkFiles:
        """Return an operator's own, named as Kubernetes and cert-manager name them."""
        return cls(
            certificate=folder / "tls.crt",
            key=folder / "tls.key",
            authority=folder / "ca.crt",
            revoked=folder / "revoked",
        )

    @property
    def are_there(self) -> bool:
        """Return whether there are a certificate, its key and an authority."""
        return None not in self.versions()[:3]

    def versions(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Return what changes when a file does; None of one that is missing."""
        return tuple(map(_version, (self.certificate, self.key, self.authority, self.revoked)))


def checking_context(files: LinkFiles | None) -> ssl.SSLContext:
    """Return that of a client of servers that are no machines of the platform, whose names are
    checked; of None by the system's authorities, and without a certificate of its own.

    Raises BadCertificates.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if files is None:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_default_certs()
    else:
        with reading(files):
            load_into(context, files)
    return context


def load_into(context: ssl.SSLContext, files: LinkFiles) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= PARTIAL_CHAIN
    context.load_verify_locations(files.authority)
    context.load_cert_chain(files.certificate, files.key, password=_refuse_password)


@contextlib.contextmanager
def reading(files: LinkFiles) -> Generator[None]:
    """Raise BadCertificates, which names a file, for what is wrong with them."""
    try:
        yield
    except ssl.SSLError as error:
        reason = (error.reason or "no PEM").replace("_", " ").lower()
        raise BadCertificates(f"{files.certificate} with {files.key}: {reason}") from None
    except OSError as error:
        raise BadCertificates(f"{error.filename or files.certificate}: {error.strerror}") from None
    except ValueError:
        raise BadCertificates(f"{files.certificate} is no certificate") from None


def _refuse_password() -> str:
    """Raise BadCertificates, where OpenSSL would prompt for a password."""
    raise BadCertificates("the key of links is encrypted; give one without a password")


def _version(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
