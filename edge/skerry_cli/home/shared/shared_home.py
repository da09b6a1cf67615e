"""One home kept as the servers have it, and they as it was edited there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Callable, Generator

from nats.aio.client import Client

from skerry_cli.home.errors import StateError
from skerry_cli.home.keys import SECRET_BYTES, cluster_key, keep_private
from skerry_cli.home.shared.files import SharedFile, SharedFiles
from skerry_cli.home.shared.key_root import WrongKey, sealed, unsealed
from skerry_cli.home.state import Home
from skerry_edge.gate.quotas import load_quotas
from skerry_edge.shared.nats_settings import NatsSettings, SettingsPicture
from skerry_edge.shared.nats_tokens import NatsTokenRecords
from skerry_edge.shared.settings_messages import file_write
from skerry_regions.models.catalog import Catalog, operator_catalog
from skerry_regions.state_url import StateURL

KEY_ROOT = "key-root"


class SharedHome:
    """Follows the servers from when its `settings` are opened."""

    def __init__(
        self,
        home: Home,
        url: StateURL,
        *,
        name: str,
        has_root: bool,
        make_client: Callable[[], Client],
    ) -> None:
        """`has_root`: the home has the platform's key root, too. Raises TokenStoreError."""
        self.settings = NatsSettings(url, self.take_in, name=name, make_client=make_client)
        self.problem = ""  # that the operator has to mend
        self._home = home
        self._has_root = has_root
        self._tokens = NatsTokenRecords(home.tokens, self.settings)
        self._files = SharedFiles(
            [
                SharedFile("catalog", operator_catalog(home.root), self._catalog),
                SharedFile("limits", home.limits, self._limits),
            ],
            home.shared,
        )

    def take_in(self, picture: SettingsPicture) -> None:
        """Have the home be as the picture. Raises RevisionConflict, `StreamFull`, `Unavailable`,
        OSError, StateError or TokenStoreError."""
        with self._locked():
            if self._has_root:
                self._agree_on_root(picture)
            self._tokens.follow(picture)
            self._files.agree(picture, self.settings)

    @contextlib.contextmanager
    def _locked(self) -> Generator[None]:
        """Have no other process of the home do the same."""
        lock = os.open(self._home.shared.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(lock, "wb"):
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _agree_on_root(self, picture: SettingsPicture) -> None:
        """Take the platform's key root over; the first home gives its own, or draws it."""
        secret, shared = self._home.secret, picture.files.get(KEY_ROOT)
        if shared is None or shared.content is None:
            root = secret.read_bytes() if secret.exists() else secrets.token_bytes(SECRET_BYTES)
            self.settings.write(file_write(KEY_ROOT, sealed(root, cluster_key(self._home)), 0))
        else:
            try:
                root = unsealed(shared.content, cluster_key(self._home))
            except WrongKey:
                self.problem = (
                    "the platform's key root is sealed with another home's cluster.key: copy that "
                    f"file to {self._home.cluster_key}"
                )
                raise StateError(self.problem) from None
        keep_private(secret, root)

    def _catalog(self) -> Catalog:
        return Catalog.load(self._home.root)

    def _limits(self) -> object:
        return load_quotas(self._home.limits, self._catalog())
