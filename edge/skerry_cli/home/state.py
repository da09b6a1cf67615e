"""What Skerry keeps on disk, and whether it runs.

    SKERRY_HOME            ~/.skerry unless set; readable by its owner only
    ├── config.json        URLs, account id and API token that `skerry up` wrote: the SDK reads it
    ├── tokens.json        API tokens, hashed
    ├── limits.yaml        the operator's limits of tenants and models
    ├── spending.db        what capped tokens spent
    ├── secret             root of the tenants' cache keys
    ├── cluster.key        what edges and nodes of other machines have to hold, too
    ├── control.key        what the control plane makes tokens of that it tells twice
    ├── authority.pem      what signs the certificates of machines that join the control plane here
    ├── machine/           of a machine that joined: its key, its certificate, whom it joined
    ├── dns/ZONE.key       the private key that signs a zone
    ├── dns/ZONE.transfer  what a zone's secondaries prove to hold
    ├── dns/ZONE.zone.json what a control plane last said of a zone
    ├── geo/country.mmdb   which countries addresses are in
    ├── usage.db           the usage journal
    ├── answers.db         answers that may be given again; idempotency.db: keys of requests
    ├── responses.db       answers that conversations may go on from, for a day
    ├── queue.db files.db  batches that wait or were done of late, and their files
    ├── zones/ZONE/        these last six of the edges in a residency zone
    ├── catalog.yaml       the operator's own models
    ├── models/  cache/    model files; compiled kernels and repacked weights
    ├── logs/              skerry.log of `skerry up --detach`, and one of each node and edge
    └── run/               skerry.lock (held while it runs), instance.json, control.sock,
                           registry.db (who is there), sockets of nodes

"Running" means that somebody holds the lock: the kernel lets go of it however the process ends, so
a record left behind by `kill -9` is never mistaken for a running platform, nor a recycled pid.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import tempfile
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from skerry_regions.private_files import create_file, replace_file
from skerry_regions.zones import GLOBAL

MAX_STATE_BYTES = 64 * 1024
CONTROL_NAME = "control.sock"
SECRET_BYTES = 32
JOURNAL_NAME = "usage.db"
LOCK_SECONDS = 1.0  # longer than another command needs to look at the lock

RecordT = TypeVar("RecordT", "Config", "Instance")


class StateError(Exception):
    """State that cannot be read or written; the message says what to do."""


class AlreadyRunning(Exception):
    """Another process runs the platform of this home."""

    def __init__(self, instance: Instance | None) -> None:
        super().__init__("Skerry is already running")
        self.instance = instance


class Config(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to reach the platform of this home; kept between runs, so that tokens stay valid."""

    url: str = ""  # of an edge; absent where there is none yet
    account_id: str
    api_token: str
    control_url: str = ""  # of the control plane


class Instance(Struct, frozen=True):
    """The process that runs the platform."""

    pid: int
    control: str  # path of its status socket
    ready: bool = False
    url: str = ""


@dataclass(frozen=True, slots=True)
class Home:
    """The folder of one platform's state."""

    root: Path
    zone: str = GLOBAL  # of the process that uses it

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Home:
        given = environ.get("SKERRY_HOME")
        return cls(Path(given).expanduser().absolute() if given else Path.home() / ".skerry")

    def in_zone(self, zone: str) -> Home:
        """The same for an edge that stands there."""
        return replace(self, zone=zone)

    @property
    def stores(self) -> Path:
        """Where what requests leave behind is kept: a folder of its own for each zone."""
        return self.root if self.zone == GLOBAL else self.root / "zones" / self.zone

    @property
    def config(self) -> Path:
        return self.root / "config.json"

    @property
    def tokens(self) -> Path:
        return self.root / "tokens.json"

    @property
    def secret(self) -> Path:
        return self.root / "secret"

    @property
    def cluster_key(self) -> Path:
        return self.root / "cluster.key"

    @property
    def control_key(self) -> Path:
        return self.root / "control.key"

    @property
    def authority(self) -> Path:
        return self.root / "authority.pem"

    @property
    def machine(self) -> Path:
        return self.root / "machine"

    def zone_key(self, zone: str) -> Path:
        return self.root / "dns" / f"{zone.rstrip('.').lower()}.key"

    def transfer_key(self, zone: str) -> Path:
        return self.zone_key(zone).with_suffix(".transfer")

    @property
    def geo_data(self) -> Path:
        """Which countries addresses are in."""
        return self.root / "geo" / "country.mmdb"

    def kept_zone(self, zone: str) -> Path:
        """What a control plane last said of it."""
        return self.zone_key(zone).with_suffix(".zone.json")

    @property
    def limits(self) -> Path:
        return self.root / "limits.yaml"

    @property
    def spending(self) -> Path:
        return self.root / "spending.db"

    @property
    def responses(self) -> Path:
        return self.stores / "responses.db"

    @property
    def queue(self) -> Path:
        return self.stores / "queue.db"

    @property
    def files(self) -> Path:
        return self.stores / "files.db"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def instance(self) -> Path:
        return self.run / "instance.json"

    @property
    def lock(self) -> Path:
        return self.run / "skerry.lock"

    @property
    def registry(self) -> Path:
        return self.run / "registry.db"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def log(self) -> Path:
        return self.logs / "skerry.log"

    def create(self) -> None:
        """Make the folders. Raises `StateError` where that is not allowed."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (self.cache, self.run, self.log.parent, self.stores):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(
                f"Cannot create {error.filename}: {error.strerror}. "
                "Set SKERRY_HOME to a folder that you may write to."
            ) from None


def read_config(home: Home) -> Config | None:
    """None when no `skerry up` has run yet. Raises `StateError` for a damaged file."""
    return _read(home.config, Config)


def write_config(home: Home, config: Config) -> None:
    _write(home.config, config)


def running(home: Home) -> Instance | None:
    """The process that runs the platform, starting up included; None when there is none."""
    with contextlib.suppress(FileNotFoundError), home.lock.open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _read(home.instance, Instance)
    return None


@contextlib.contextmanager
def claim(home: Home) -> Generator[str]:
    """Be the platform of this home for a while; gives the path of the status socket to be.

    Raises `AlreadyRunning`. Forgets what a killed predecessor left, and leaves nothing behind but
    the lock file.
    """
    home.create()
    with home.lock.open("wb") as lock:
        _take(lock.fileno(), home)
        _forget(home)
        control = _control_path(home)
        announce(home, Instance(pid=os.getpid(), control=control))
        try:
            yield control
        finally:
            _forget(home)


def announce(home: Home, instance: Instance) -> None:
    """Say who runs the platform; only the holder of the claim may."""
    _write(home.instance, instance)


def secret(home: Home) -> bytes:
    """The platform's secret, 32 bytes, drawn on first use: the root of the tenants' cache keys."""
    return _drawn_once(home.secret)


def control_key(home: Home) -> bytes:
    """Secrets of tokens that are told twice follow from it: 32 bytes that no machine is given."""
    return _drawn_once(home.control_key)


def cluster_key(home: Home) -> bytes:
    """What edges and nodes prove to each other that they hold: 32 bytes, drawn on first use.

    Raises `StateError` when others than the owner could read the file.
    """
    key = _drawn_once(home.cluster_key)
    if home.cluster_key.stat().st_mode & 0o077:
        raise StateError(
            f"Others may read {home.cluster_key}: `chmod 600 {home.cluster_key}` keeps it secret."
        )
    return key


def _drawn_once(path: Path) -> bytes:
    """32 random bytes of a file, the same for all processes that ask for it at once."""
    if not path.exists():
        _write_new(path, secrets.token_bytes(SECRET_BYTES))
    try:
        stored = path.read_bytes()
    except OSError as error:
        raise StateError(f"Cannot read {path}: {error.strerror}.") from None
    if len(stored) != SECRET_BYTES:
        raise StateError(f"{path} is damaged: delete it and run `skerry up` again.")
    return stored


def keep_private(path: Path, content: bytes) -> None:
    """Write a file that its owner alone may read, unless it says so already."""
    if not path.exists() or path.read_bytes() != content:
        _replace(path, content)


def _control_path(home: Home) -> str:
    """A new path for the status socket: in the home, or where a too long path leaves room."""
    path = home.run / CONTROL_NAME
    if len(os.fsencode(path)) < 100:  # Unix sockets take 108 bytes on Linux, 104 on macOS
        return str(path)
    return os.path.join(tempfile.mkdtemp(prefix="skerry-"), CONTROL_NAME)


def _take(lock: int, home: Home) -> None:
    """Lock exclusively. A command that only looks holds the lock for microseconds: try again."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise AlreadyRunning(_read(home.instance, Instance)) from None
            time.sleep(0.01)


def _forget(home: Home) -> None:
    """Remove the record and the status socket of whoever held the claim last."""
    with contextlib.suppress(StateError):
        instance = _read(home.instance, Instance)
        if instance is not None and (control := Path(instance.control)).name == CONTROL_NAME:
            control.unlink(missing_ok=True)
            if control.parent != home.run:
                with contextlib.suppress(OSError):
                    control.parent.rmdir()
    home.instance.unlink(missing_ok=True)


def _read(path: Path, kind: type[RecordT]) -> RecordT | None:
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(MAX_STATE_BYTES), type=kind)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"Cannot read {path}: {error.strerror}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StateError(
            f"{path} is damaged ({error}): delete it and run `skerry up` again."
        ) from None


def _write(path: Path, record: Config | Instance) -> None:
    _replace(path, msgspec.json.format(msgspec.json.encode(record)) + b"\n")


def _write_new(path: Path, content: bytes) -> None:
    """Write a file whole, readable by its owner only, unless it is there already."""
    try:
        create_file(path, content)
    except OSError as error:
        raise StateError(f"Cannot write {path}: {error.strerror}.") from None


def _replace(path: Path, content: bytes) -> None:
    """Replace a file whole, readable by its owner only."""
    try:
        replace_file(path, content)
    except OSError as error:
        raise StateError(f"Cannot write {path}: {error.strerror}.") from None
