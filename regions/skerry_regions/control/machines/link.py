"""A machine's side of the control plane: it joins once, then calls with its certificate.

FOLDER/key.pem            its private key, made here, and sent nowhere
FOLDER/certificate.pem    short-lived; renewed when half its time is over
FOLDER/authority.pem      whom it believes, as the join token's fingerprint said
FOLDER/revoked            machines that links are not opened to, one a line
FOLDER/machine.json       who it is, and what it ran last: enough to start without the control
                          plane
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import platform
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from skerry import __version__
from skerry_regions.control.machines.calls import (
    ControlAway,
    ControlRefused,
    T,
    checked_url,
    client_of,
    exchange,
    read,
    trusting,
)
from skerry_regions.control.machines.folder import (
    JoinError,
    certificate_request,
    kept_key,
    load_key,
)
from skerry_regions.control.machines.messages import (
    MAX_PEM,
    PREFIX,
    Assignment,
    AssignmentAnswer,
    Joined,
    JoinRequest,
    Kind,
    RenewRequest,
    Revocations,
)
from skerry_regions.private_files import replace_file

if TYPE_CHECKING:
    import httpx

RETRY_SECONDS = 60.0  # after a renewal that failed
ASSIGNMENT: msgspec.json.Decoder[Assignment | None] = msgspec.json.Decoder(Assignment | None)

logger = logging.getLogger(__name__)


class Enrolment(Struct, frozen=True, kw_only=True):
    """This machine's identity. Times are Unix seconds, by its own clock but for `not_after`."""

    url: str  # of the control plane; of several, with commas between them
    machine: str
    kind: Kind
    renewed_at: float
    not_after: float  # of the certificate
    assignment: msgspec.Raw = msgspec.Raw(b"null")  # that it ran last; of any version of Skerry


class ControlLink:
    """Calls the control plane as the machine that joined. Safe to use from several threads."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Raises JoinError when no machine has joined here."""
        self._folder = folder
        self._clock = clock
        self._lock = threading.RLock()  # one call at a time, over one connection
        self._not_before = 0.0  # of the next attempt to renew
        self.revocations = ""  # digest of those that are shut out
        try:
            data = (folder / "machine.json").read_bytes()
            self._enrolment = msgspec.json.decode(data, type=Enrolment)
            self._urls = self._enrolment.url.split(",")  # first the one that answered last
            self._client = self._connected()
        except (OSError, msgspec.DecodeError, ssl.SSLError) as error:
            raise JoinError(f"{folder}: {error}; delete it and join again") from None

    @property
    def url(self) -> str:
        return self._enrolment.url

    @property
    def machine(self) -> str:
        return self._enrolment.machine

    @property
    def kind(self) -> Kind:
        return self._enrolment.kind

    @property
    def last_assignment(self) -> Assignment | None:
        try:
            return ASSIGNMENT.decode(self._enrolment.assignment)
        except msgspec.DecodeError:
            return None

    def assignment(self) -> Assignment:
        """Return what to run now; kept, so that the machine can start with it while the control
        plane is away. Raises ControlAway or ControlRefused."""
        with self._lock:
            found = self.call("GET", "/assignment", AssignmentAnswer).assignment
            kept = msgspec.Raw(msgspec.json.encode(found))
            try:
                if bytes(kept) != bytes(self._enrolment.assignment):
                    self._keep(replace(self._enrolment, assignment=kept))
            except OSError as error:  # a full disk is no reason not to serve
                logger.warning("what to run is not kept: %s", error)
        return found

    def call(self, method: str, path: str, type_: type[T], body: Struct | None = None) -> T:
        """Raises ControlAway or ControlRefused."""
        with self._lock:
            self._renew_when_due()
            return self._call(method, path, type_, body)

    def renew(self) -> Joined:
        """Get another certificate now. Raises ControlAway, ControlRefused, JoinError or OSError."""
        with self._lock:
            key = load_key(self._folder / "key.pem")
            request = RenewRequest(csr=certificate_request(key), version=__version__)
            joined = self._call("POST", "/renew", Joined, request)
            replace_file(self._folder / "certificate.pem", joined.certificate.encode())
            self._keep(
                replace(self._enrolment, renewed_at=self._clock(), not_after=joined.not_after)
            )
            former, self._client = self._client, self._connected()
            former.close()
        logger.info("the certificate of %s was renewed", self.machine)
        return joined

    def shut_out(self, revoked: Revocations | None) -> None:
        """Have links to these machines closed, and none opened; None: as known."""
        if revoked is None:
            return
        text = "".join(f"{machine}\n" for machine in revoked.machines)
        try:
            replace_file(self._folder / "revoked", text.encode())
            self.revocations = revoked.digest
        except OSError as error:  # a full disk: again with the next answer
            logger.warning("machines that were revoked are not shut out: %s", error)

    def close(self) -> None:
        self._client.close()

    def _renew_when_due(self) -> None:
        now, enrolment = self._clock(), self._enrolment
        due = (enrolment.renewed_at + enrolment.not_after) / 2
        if now < max(due, self._not_before):
            return
        self._not_before = now + RETRY_SECONDS
        try:
            self.renew()
        except (ControlAway, ControlRefused, JoinError, OSError) as error:
            logger.warning("the certificate of %s was not renewed: %s", self.machine, error)

    def _call(self, method: str, path: str, type_: type[T], body: Struct | None) -> T:
        for _ in self._urls[1:]:
            with contextlib.suppress(ControlAway):  # of several one leads, and takes calls
                return exchange(self._client, method, f"{self._urls[0]}{PREFIX}{path}", type_, body)
            self._urls = [*self._urls[1:], self._urls[0]]
        return exchange(self._client, method, f"{self._urls[0]}{PREFIX}{path}", type_, body)

    def move_to(self, url: str) -> bool:
        """Call these control planes, if one of them is known; return whether. Raises OSError."""
        if url == self.url or set(url.split(",")).isdisjoint(self._urls):
            return url == self.url
        with self._lock:
            self._keep(replace(self._enrolment, url=url))
            self._urls = url.split(",")
        return True

    def _connected(self) -> httpx.Client:
        context = trusting((self._folder / "authority.pem").read_text())
        context.load_cert_chain(self._folder / "certificate.pem", self._folder / "key.pem")
        return client_of(context)

    def _keep(self, enrolment: Enrolment) -> None:
        """Raises OSError; then it is to be kept again."""
        replace_file(self._folder / "machine.json", msgspec.json.encode(enrolment))
        self._enrolment = enrolment


def has_joined(folder: Path) -> bool:
    return (folder / "machine.json").exists()


def join(
    folder: Path,
    url: str,
    token: str,
    *,
    kind: Kind,
    pool: str = "",
    hostname: str = "",
    keep: Callable[[Joined], None] = lambda _: None,
    clock: Callable[[], float] = time.time,
) -> Joined:
    """Join the platform as a machine, and keep in `folder` what that takes. Raises JoinError.

    `url` may be several with commas between them, of control planes of which one leads. `keep`
    keeps the rest; when it fails, the machine has not joined. Called again with the same token, as
    after a lost answer, it becomes the same machine.
    """
    url = checked_url(url)
    fingerprint = _fingerprint_in(token)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = kept_key(folder / "key.pem")
        request = JoinRequest(
            token=token, csr=certificate_request(key), kind=kind, pool=pool,
            hostname=(hostname or platform.node())[:256], version=__version__,
        )  # fmt: skip
        authority, joined = _joined(url.split(","), fingerprint, request)
        replace_file(folder / "authority.pem", authority.encode())
        replace_file(folder / "certificate.pem", joined.certificate.encode())
        keep(joined)
        ends, machine = joined.not_after, joined.machine
        enrolment = Enrolment(
            url=url, machine=machine, kind=kind, renewed_at=clock(), not_after=ends
        )
        replace_file(folder / "machine.json", msgspec.json.encode(enrolment))
    except ControlAway as error:
        raise JoinError(f"{url} does not answer: {error}") from None
    except ControlRefused as error:
        raise JoinError(f"{url} refuses: {error}") from None
    except OSError as error:
        raise JoinError(f"{error.filename}: {error.strerror}") from None
    return joined


def _joined(urls: list[str], fingerprint: str, request: JoinRequest) -> tuple[str, Joined]:
    """Return the authority's certificate, and what the first of these answers that is there."""
    url, *others = urls
    try:
        authority = _authority(url, fingerprint)
        with client_of(trusting(authority)) as client:
            return authority, exchange(client, "POST", f"{url}{PREFIX}/join", Joined, request)
    except ControlAway:
        if not others:
            raise
        return _joined(others, fingerprint, request)


def _fingerprint_in(token: str) -> str:
    from skerry_regions.control.machines.join_tokens import parse

    try:
        return parse(token).fingerprint
    except ValueError as error:
        raise JoinError(str(error)) from None


def _authority(url: str, fingerprint: str) -> str:
    """Return the certificate that the token names. Nothing is sent to who shows another one."""
    unproven = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unproven.check_hostname = False
    unproven.verify_mode = ssl.CERT_NONE  # what comes is held against the fingerprint
    with client_of(unproven) as client:
        pem = read(client, "GET", f"{url}{PREFIX}/ca", b"")[:MAX_PEM].decode("ascii", "replace")
    try:
        certificate = ssl.PEM_cert_to_DER_cert(pem)
        shown = hashlib.sha256(certificate).hexdigest()
    except ValueError:
        certificate, shown = b"", ""
    if shown != fingerprint:
        raise JoinError(
            f"{url} is not the control plane that made the join token: its authority has the "
            f"fingerprint {shown or 'of no certificate'}, the token names {fingerprint}"
        )
    return ssl.DER_cert_to_PEM_cert(certificate)  # alone: what came behind it was not looked at
