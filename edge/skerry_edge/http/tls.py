"""TLS at the edge: a certificate from files, followed while connections are open.

What renews certificates (certbot, lego, acme.sh, cert-manager) only has to replace the files:
connections made from then on get the new one, those that are open keep theirs.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

from skerry_edge.reload import Followed


class TLSError(ValueError):
    """A certificate or key that cannot be used; the message names the file."""


class Certificate:
    """The certificate that an edge shows: PEM files of a chain, the edge's own first, and its key.

    `context` is for the listener, for good. TLS 1.2 and 1.3, with the ciphers that OpenSSL
    recommends; HTTP/1.1 is all that is offered.
    """

    def __init__(self, cert: Path, key: Path) -> None:
        """Raises TLSError."""
        self._cert = cert
        self._key = key
        self._current = self._load()
        self.ends_at = self._end()  # of the one shown now, in Unix seconds
        # Chosen again for every connection: a context that was loaded twice would go on showing the
        # old certificate to clients that prefer its kind of key.
        self.context = self._load()
        self.context.sni_callback = self._choose

    def followed(self) -> Followed:
        return Followed((self._cert, self._key), self._read)

    def _read(self) -> Callable[[], None]:
        loaded, end = self._load(), self._end()

        def show() -> None:
            self._current, self.ends_at = loaded, end

        return show

    def _choose(
        self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, _: ssl.SSLContext
    ) -> None:
        connection.context = self._current

    def _end(self) -> float:
        """Return when the edge's own certificate ends. It could be loaded before."""
        from cryptography import x509

        first = x509.load_pem_x509_certificates(self._cert.read_bytes())[0]
        return first.not_valid_after_utc.timestamp()

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        for path in (self._cert, self._key):
            try:
                path.open("rb").close()
            except OSError as error:
                raise TLSError(f"{path}: cannot be read: {error.strerror}") from None
        try:
            context.load_cert_chain(self._cert, self._key, password=_refuse_password)
        except ssl.SSLError as error:
            reason = (error.reason or "no PEM").replace("_", " ").lower()
            raise TLSError(f"{self._cert} with {self._key}: {reason}") from None
        return context


def _refuse_password() -> str:
    """Raise TLSError, where OpenSSL would prompt for a password on the terminal."""
    raise TLSError("the key is encrypted; give one without a password, readable by its owner only")
