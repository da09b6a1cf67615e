"""Certificates of links: a machine's own, and the authorities that it trusts, followed in use.

A certificate says by URIs among its alternative names whose it is, `skerry:machine:NAME`, and what
runs there: `skerry:runs:edge`, `skerry:runs:node`, or both. Whoever renews it replaces the files.
Links that are open go on, but for those to a machine that is shut out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import threading
import weakref
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from skerry_regions.wire.link_files import BadCertificates, LinkFiles, load_into, reading
from skerry_regions.wire.link_key import LinkRefused, Purpose

MACHINE_URI = "skerry:machine:"
RUNS_URI = "skerry:runs:"
CALLERS: dict[Purpose, frozenset[str]] = {
    "streams": frozenset({"edge"}),
    "kv": frozenset({"node"}),
    "ranks": frozenset({"node"}),
}
ANSWERERS: dict[Purpose, frozenset[str]] = {
    "streams": frozenset({"edge", "node"}),  # an edge takes them for the nodes of its region
    "kv": frozenset({"node"}),
    "ranks": frozenset({"node"}),
}
LOOK_SECONDS = 0.25  # between looks at the files
MAX_REVOKED_BYTES = 16 << 20  # of the file of names

logger = logging.getLogger(__name__)


class OpenLink(Protocol):
    """A link that is open."""

    def abort(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What the files said when they were last read."""

    machine: str
    contexts: dict[tuple[Purpose, bool], ssl.SSLContext]
    revoked: frozenset[str]


class LinkCertificates:
    """The certificates of one process. Lives on one event loop, or thread; `context`, `admit` and
    `opened` may be called from any."""

    def __init__(self, files: LinkFiles) -> None:
        """Raises BadCertificates; files that are not there yet are used once they are."""
        self._files = files
        self._links: dict[str, weakref.WeakSet[Any]] = {}  # that are open, by machine
        self._lock = threading.Lock()  # of the links
        self._versions: object = None
        self._loaded: _Loaded | None = None
        self._refused = ""  # logged last
        self._read()

    @property
    def are_there(self) -> bool:
        return self._loaded is not None

    @property
    def machine(self) -> str:
        """Return whose certificate it is; empty without one."""
        return "" if self._loaded is None else self._loaded.machine

    def context(self, purpose: Purpose, *, listens: bool) -> ssl.SSLContext:
        """Return that of a new link. Raises LinkRefused while there are no files."""
        if self._loaded is None:
            raise LinkRefused(f"there is no {self._files.certificate} yet")
        return self._loaded.contexts[purpose, listens]

    def admit(
        self, certificate: Any, purpose: Purpose, *, is_caller: bool, expected: str = ""
    ) -> str:
        """Return the machine at the other end, by its certificate that was verified.

        Raises LinkRefused on one that may not do this, was shut out, or is not the `expected` one.
        """
        machine, runs = _said(certificate)
        allowed = (CALLERS if is_caller else ANSWERERS)[purpose]
        if not machine:
            raise LinkRefused("the certificate at the other end names no machine")
        if self._loaded is not None and machine in self._loaded.revoked:
            raise LinkRefused(f"the machine {machine} was revoked")
        if not runs & allowed:
            does = "open" if is_caller else "take"
            what = " and ".join(sorted(runs)) or "nothing"
            raise LinkRefused(f"the machine {machine} runs {what}: it may not {does} {purpose}")
        if expected and machine != expected:
            raise LinkRefused(f"the machine {machine} answers where {expected} should")
        return machine

    def opened(self, machine: str, link: OpenLink) -> None:
        """Close this link when its machine is shut out."""
        with self._lock:
            self._links.setdefault(machine, weakref.WeakSet()).add(link)

    def look(self) -> None:
        """Take in files that changed; those that cannot be used change nothing."""
        try:
            self._read()
            self._refused = ""
        except BadCertificates as error:
            if str(error) != self._refused:
                self._refused = str(error)
                logger.warning("certificates of links stay as they were: %s", error)
        with self._lock:
            self._links = {machine: links for machine, links in self._links.items() if links}
            shut_out = self._links.keys() & (self._loaded.revoked if self._loaded else ())
            ending = {machine: list(self._links.pop(machine)) for machine in shut_out}
        for machine, links in ending.items():
            logger.warning("the machine %s was revoked: %d links end", machine, len(links))
            for link in links:
                link.abort()

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncGenerator[None]:
        """Follow the files while the block runs."""

        async def follow() -> None:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                self.look()

        task = asyncio.create_task(follow(), name="certificates of links")
        try:
            yield
        finally:
            task.cancel()

    def _read(self) -> None:
        versions = self._files.versions()
        if versions == self._versions:
            return
        if None not in versions[:3]:
            self._loaded = _load(self._files)
        self._versions = versions


def _load(files: LinkFiles) -> _Loaded:
    """Raises BadCertificates."""
    from cryptography import x509

    with reading(files):
        certificate = x509.load_pem_x509_certificates(files.certificate.read_bytes())[0]
        contexts: dict[tuple[Purpose, bool], ssl.SSLContext] = {
            (purpose, listens): _context(files, purpose, listens=listens)
            for purpose in CALLERS
            for listens in (False, True)
        }
    machine, _ = _named(_uris(certificate))
    if not machine:
        raise BadCertificates(f"{files.certificate} has no name {MACHINE_URI}NAME")
    return _Loaded(machine, contexts, _revoked(files.revoked))


def _context(files: LinkFiles, purpose: Purpose, *, listens: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if listens else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # who it is, is checked by `admit`
    context.set_alpn_protocols([protocol_of(purpose)])
    load_into(context, files)
    if listens:
        context.num_tickets = 0  # whoever comes again shows its certificate again
    return context


def protocol_of(purpose: Purpose) -> str:
    """Return what is agreed on by ALPN, so that one kind of link is not used as another."""
    return f"skerry-{purpose}/1"


def _revoked(path: Path) -> frozenset[str]:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_REVOKED_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return frozenset()
    except OSError as error:
        raise BadCertificates(f"{path}: {error.strerror}") from None
    return frozenset(line.strip() for line in text.splitlines() if line.strip())


def _uris(certificate: Any) -> Iterable[str]:
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return ()
    return tuple(names.value.get_values_for_type(x509.UniformResourceIdentifier))


def _said(certificate: Any) -> tuple[str, frozenset[str]]:
    """Return whose a certificate is that `ssl` has parsed, and what runs there."""
    return _named(value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI")


def _named(uris: Iterable[str]) -> tuple[str, frozenset[str]]:
    uris = tuple(uris)
    machines = [uri for uri in uris if uri.startswith(MACHINE_URI)]
    machine = machines[0].removeprefix(MACHINE_URI) if len(machines) == 1 else ""
    runs = (uri.removeprefix(RUNS_URI) for uri in uris if uri.startswith(RUNS_URI))
    return machine, frozenset(runs)
