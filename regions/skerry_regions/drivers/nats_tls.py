"""TLS 1.3 to NATS servers of `tls://` URLs: a certificate at both ends where this machine has one.

nats-py encrypts where a server says that it should, and sends the password in the clear where it
does not: whoever stands between may leave that word out. A server that does is left.
"""

from __future__ import annotations

import logging
import ssl
from typing import Any

from nats.aio.client import Client
from nats.errors import Error as NatsError

from skerry_regions.wire.link_files import BadCertificates, LinkFiles, checking_context
from skerry_regions.wire.link_tls import tls_reason

logger = logging.getLogger(__name__)


class NotEncrypted(NatsError):
    """No connection of TLS comes about with a server that was reached."""


class NatsTLS:
    """What connections to NATS servers are opened with: files, which are followed."""

    def __init__(self, files: LinkFiles | None) -> None:
        """As long as the files are not there, and of None, the system's authorities are believed,
        and no certificate is shown."""
        self._files = files
        self._versions: object = None
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """Return that of a new connection, by the files as they are now; by those of before where
        they cannot be used. Raises BadCertificates where there are none of before."""
        versions = () if self._files is None else self._files.versions()[:3]
        if self._context is not None and versions == self._versions:
            return self._context
        try:
            self._context = checking_context(None if None in versions else self._files)
            self._versions = versions
        except BadCertificates as error:
            if self._context is None:
                raise
            logger.warning("the certificate for NATS stays as it was: %s", error)
        return self._context


class EncryptedClient(Client):
    """A client whose connections are all encrypted, or none; each by the files as they then are."""

    def __init__(self, tls: NatsTLS) -> None:
        super().__init__()
        self._tls = tls

    @property
    def ssl_context(self) -> ssl.SSLContext:
        try:
            return self._tls.context()
        except BadCertificates as error:
            raise NotEncrypted(str(error)) from None

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and not info.get("tls_required"):
            raise NotEncrypted(
                "TLS: the server does not encrypt: write `tls {}` in its configuration"
            )
        await super()._process_info(info, initial_connection)


def refusal(error: Exception, before: str) -> str:
    """Return why a server that was reached and this end refuse each other; empty where that is not
    what failed. A server may be gone before its reason is read: then the one `before` stands."""
    if isinstance(error, (ssl.SSLError, NotEncrypted)):
        return nats_reason(error)
    return before if isinstance(error, (ConnectionResetError, BrokenPipeError)) else ""


def nats_reason(error: Exception) -> str:
    """Return why servers are not reached, and what to do where they wanted another certificate."""
    if not isinstance(error, ssl.SSLError):
        return str(error) or type(error).__name__
    why = tls_reason(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{why}; its certificate has to be good for its name in the URL"
    if "certificate" in why or "unknown ca" in why:
        return f"{why}; `?certificates=FOLDER` names one that the servers accept"
    return why
