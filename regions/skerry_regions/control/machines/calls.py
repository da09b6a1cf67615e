"""Calls of a machine to the control plane over TLS, and what their failures mean."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from skerry import __version__
from skerry_regions.control.errors import Revoked
from skerry_regions.control.machines.folder import JoinError
from skerry_regions.control.machines.messages import (
    SERVER_NAME,
    VERSIONS_HEADER,
    versions_text,
)
from skerry_regions.wire.link_files import PARTIAL_CHAIN

if TYPE_CHECKING:  # a process that calls nobody need not import it
    import httpx

ANSWER_SECONDS = 5.0
MAX_ANSWER_BYTES = 64 << 20
MAX_URL = 2048

T = TypeVar("T")


class ControlAway(Exception):
    """The control plane does not answer now."""


class ControlRefused(Exception):
    """The control plane refuses; the message says why."""

    def __init__(self, message: str, kind: str = "") -> None:
        """`kind` is the type of the error that it answers with."""
        super().__init__(message)
        self.kind = kind

    @property
    def is_revoked(self) -> bool:
        """Return whether this machine is no longer wanted."""
        return self.kind == Revoked.type


def client_of(context: ssl.SSLContext) -> httpx.Client:
    """Return a client that calls the control plane by the name in its certificate, wherever it
    is reached."""
    import httpx

    headers = {
        "host": SERVER_NAME,
        VERSIONS_HEADER: versions_text(),
        "user-agent": f"skerry/{__version__}",
    }
    return httpx.Client(verify=context, timeout=ANSWER_SECONDS, trust_env=False, headers=headers)


def trusting(authority: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks the name, requires a certificate
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= PARTIAL_CHAIN  # it may be below an operator's own
    context.load_verify_locations(cadata=authority)
    return context


def checked_url(url: str) -> str:
    """Return it without a path; several, with commas between them, each. Raises JoinError."""
    return ",".join(_checked(each.strip()) for each in url.split(","))


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_whole = parts.scheme == "https" and bool(parts.hostname) and parts.port != 0
    except ValueError:  # such as a port above 65535
        raise JoinError(f"{url[:MAX_URL]!r} is not https://HOST:PORT") from None
    more = parts.path.strip("/") or parts.query or parts.fragment or parts.username
    if len(url) > MAX_URL or not is_whole or more:
        raise JoinError(f"{url[:MAX_URL]!r} is not https://HOST:PORT")
    return f"https://{parts.netloc}"


def exchange(client: httpx.Client, method: str, url: str, type_: type[T], body: Struct | None) -> T:
    data = read(client, method, url, b"" if body is None else msgspec.json.encode(body))
    try:
        return msgspec.json.decode(data, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ControlAway(f"the answer cannot be read: {error}") from None


def read(client: httpx.Client, method: str, url: str, body: bytes) -> bytes:
    """Raises ControlAway or ControlRefused."""
    import httpx

    extensions = {"sni_hostname": SERVER_NAME}
    try:
        with client.stream(method, url, content=body, extensions=extensions) as answer:
            data = b""
            for piece in answer.iter_bytes():
                data += piece
                if len(data) > MAX_ANSWER_BYTES:
                    raise ControlAway(f"the answer is larger than {MAX_ANSWER_BYTES} bytes")
    except httpx.HTTPError as error:
        raise ControlAway(str(error) or type(error).__name__) from None
    except RuntimeError as error:  # the client was closed
        raise ControlAway(str(error)) from None
    if answer.is_success:
        return data
    message, kind = _told(data)
    message = message or f"HTTP status {answer.status_code}"
    raise ControlAway(message) if answer.status_code >= 500 else ControlRefused(message, kind)


def _told(data: bytes) -> tuple[str, str]:
    """Return message and type of a refusal."""
    try:
        error = msgspec.json.decode(data)["error"]
        return str(error["message"])[:1024], str(error["type"])
    except (msgspec.DecodeError, UnicodeDecodeError, LookupError, TypeError):
        return "", ""
