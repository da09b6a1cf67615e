"""What the control API needs of machines: tokens for new ones, and who joined.

Also what links of the control plane's own machine are opened with.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from skerry_regions.control.errors import ControlError
from skerry_regions.control.machines.authority import MACHINE_SECONDS, Authority, read_request
from skerry_regions.control.machines.book import Machine, Machines
from skerry_regions.control.machines.folder import JoinError, certificate_request, kept_key
from skerry_regions.control.machines.hosts import Hosts
from skerry_regions.control.machines.join_tokens import JoinTokens
from skerry_regions.control.machines.joined import JoinedMachines, tell_revoked
from skerry_regions.control.machines.link import has_joined
from skerry_regions.control.machines.messages import Revocations
from skerry_regions.private_files import replace_file
from skerry_regions.registry import Registry

OWN_MACHINE = "control"  # the control plane's, in its certificate
LOOK_SECONDS = 0.5  # between looks at who was revoked

logger = logging.getLogger(__name__)


class OwnMachine:
    """The control plane's own machine, whose edges and nodes open links to those that joined: its
    certificate, renewed as theirs are, and who is shut out. Methods block for milliseconds."""

    def __init__(
        self, authority: Authority, machines: Machines, folder: Path, clock: Callable[[], float]
    ) -> None:
        self._authority = authority
        self._machines = machines
        self._folder = folder
        self._clock = clock
        self._due = 0.0  # to get another certificate
        self.revocations = Revocations(digest="", machines=())

    def look(self) -> None:
        """Renew what is due, and take in who was revoked. Raises OSError, JoinError or a
        ControlError."""
        self._take_revoked()
        if self._clock() < self._due or has_joined(self._folder):
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        request = read_request(certificate_request(kept_key(self._folder / "key.pem")))
        signed = self._authority.sign(request, OWN_MACHINE, "edge", "node")
        replace_file(self._folder / "authority.pem", self._authority.pem.encode())
        replace_file(self._folder / "certificate.pem", signed.pem.encode())
        self._due = self._clock() + MACHINE_SECONDS / 2

    async def keep(self) -> None:
        """Look again and again, without an end."""
        told = ""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await asyncio.to_thread(self.look)
                told = ""
            except (OSError, JoinError, ControlError) as error:
                if str(error) != told:
                    told = str(error)
                    logger.warning("certificates of links are not kept up: %s", told)

    def _take_revoked(self) -> None:
        names = self._machines.revoked(self._clock())
        text = "".join(f"{name}\n" for name in names).encode()
        digest = hashlib.blake2b(text, digest_size=16).hexdigest()
        if digest != self.revocations.digest:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._folder / "revoked", text)
            self.revocations = Revocations(digest=digest, machines=names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """Methods of `tokens` and `machines` block for milliseconds: call them on a thread."""

    tokens: JoinTokens
    machines: Machines
    joined: JoinedMachines
    nodes: Hosts
    registry: Registry
    own: OwnMachine

    async def revoke(self, id: str, *, actor: str) -> Machine:
        """Shut a machine out: its certificate is refused, and whoever has links to it closes them.

        Raises NotFound, or RegistryUnavailable when edges could not be notified: it is refused all
        the same, and they are notified when the control plane starts again.
        """
        machine = await asyncio.to_thread(lambda: self.machines.revoke(id, actor=actor))
        self.joined.forget(id)
        try:
            await asyncio.to_thread(self.own.look)
        except (OSError, JoinError) as error:
            logger.warning("links to %s are not closed here yet: %s", id, error)
        gone = self.nodes.forget(id)
        await asyncio.to_thread(tell_revoked, self.registry, machine, gone)
        return machine
