"""What control planes of one platform share: the log of what is wanted, and secrets.

The log has no secrets. They are copied from home to home by whoever runs the platform, and each
control plane checks that it has the same ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import tempfile
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from skerry_cli.home.control_home import control_database
from skerry_cli.home.errors import CannotStart, raised_as
from skerry_cli.home.keys import cluster_key, control_key
from skerry_cli.home.shared_state import opened_state, stream_of
from skerry_cli.home.state import Home, known_config
from skerry_regions.control.desired.backup import check_copy
from skerry_regions.control.desired.store import Store
from skerry_regions.control.machines.authority import Authority
from skerry_regions.drivers.jetstream.tables import LEASES

if TYPE_CHECKING:
    from skerry_regions.control.desired.logged_store import LoggedStore
    from skerry_regions.control.desired.succession import Succession

SECRETS = "secrets"  # name of what all control planes of a platform have


@dataclass(frozen=True, slots=True)
class SharedControl:
    """The parts of one of several control planes."""

    store: LoggedStore
    succession: Succession


@contextlib.asynccontextmanager
async def shared_control(
    home: Home, url: str, followed: Callable[[Store], None]
) -> AsyncGenerator[SharedControl | None]:
    """Yield what follows the platform's log; None where the state is in this home alone.

    `url` is where we are, `followed` is called on a thread after each look at the log. Raises
    `CannotStart`, and what opening a store does.
    """
    async with opened_state(home, os.environ, "control", of_control=True) as state:
        if state is None:
            yield None
            return
        from skerry_regions.control.desired.logged_store import LoggedStore, UnfitLog
        from skerry_regions.control.desired.succession import LeadingControl, Succession
        from skerry_regions.control.desired.transaction_log import TransactionLog
        from skerry_regions.drivers.jetstream.leader_lease import LeaderLease
        from skerry_regions.zones import GLOBAL

        log = TransactionLog(state, asyncio.get_running_loop())
        with raised_as(CannotStart, UnfitLog):
            store = await asyncio.to_thread(LoggedStore, control_database(home), log)
        try:
            lease = LeaderLease(
                stream_of(state, LEASES, GLOBAL),
                "control",
                msgspec.json.encode(LeadingControl(url=url)),
            )
            yield SharedControl(store, Succession(store, lease, lambda: followed(store)))
        except UnfitLog as error:
            raise CannotStart(str(error)) from None
        finally:
            await asyncio.to_thread(store.close)  # once a write that is under way has its answer


class SharedSecrets:
    """What all control planes of a platform have, and the log only the digest of."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._digest = _digest(home)

    def check(self, store: Store) -> None:
        """Raise `CannotStart` where the platform's other control planes have other secrets:
        machines that joined by way of them would be strangers here."""
        known = store.select("SELECT value FROM platform WHERE name = ?", (SECRETS,))
        if known and known[0][0] != self._digest:
            home = self._home
            paths = (home.authority, home.control_key, home.cluster_key, home.config)
            names = ", ".join(path.name for path in paths)
            raise CannotStart(
                f"{home.root} has other secrets than the platform's other control planes: copy "
                f"{names} from the home of one of them, readable by their owner only"
            )

    def keep(self, store: Store) -> None:
        """Have later control planes of the platform checked against these. Raises Busy."""
        self.check(store)
        with store.writing() as writing:
            writing.execute("INSERT OR IGNORE INTO platform VALUES (?, ?)", (SECRETS, self._digest))


def _digest(home: Home) -> str:
    """Return a digest of all secrets of a home, from which none of them can be computed."""
    config, authority = known_config(home), Authority.open(home.authority)
    parts = (
        control_key(home), cluster_key(home), authority.fingerprint.encode(),
        config.account_id.encode(),
    )  # fmt: skip
    return hashlib.blake2b(b"\0".join(parts), digest_size=16, person=b"skerry control").hexdigest()


async def restore_to_log(home: Home, copy: Path) -> bool:
    """Have all control planes of the platform want what a copy of a database says; False where
    the state is that of this home alone. Raises `CannotStart`, BackupError or Busy."""
    async with opened_state(home, os.environ, "restore", of_control=True) as state:
        if state is None:
            return False
        from skerry_regions.control.desired.logged_store import LoggedStore
        from skerry_regions.control.desired.transaction_log import TransactionLog

        log = TransactionLog(state, asyncio.get_running_loop())

        def put_back() -> None:
            check_copy(copy)
            with (
                tempfile.TemporaryDirectory() as folder,
                contextlib.closing(LoggedStore(Path(folder) / "control.db", log)) as store,
            ):
                store.next_term(0)
                store.replace(copy)

        await asyncio.to_thread(put_back)
        return True
