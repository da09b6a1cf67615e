"""What Skerry keeps on disk.

SKERRY_HOME            ~/.skerry unless set; readable by its owner only
├── config.json        URLs, account id and API token that `skerry up` wrote: the SDK reads it
├── tokens.json        API tokens, hashed
├── token-audit.log    who changed them with `skerry tokens`; .1 to .4 were before
├── known_models.json  which models nodes announced to edges here
├── known_members.json where edges here last found nodes and edges, for a start without registry
├── limits.yaml        the operator's limits of tenants and models
├── issuers.yaml       whose logins count beside API tokens
├── spending.db        what capped tokens spent
├── state              which NATS servers have that and more, in place of files here
├── shared.json        what all homes had of limits and catalog, where NATS servers have the state
├── state.json         where it is, once `skerry state copy` was begun
├── secret             root of the tenants' cache keys
├── cluster.key        what edges and nodes of other machines have to hold, too
├── control.key        what the control plane makes tokens of that it shows twice
├── authority.pem      what signs the certificates of machines that join the control plane here
├── machine/           of a machine that joined: its key, its certificate, whom it joined
├── dns/ZONE.key       the private key that signs a zone
├── dns/ZONE.transfer  what a zone's secondaries prove to hold
├── dns/ZONE.zone.json what a control plane last said of a zone
├── dns/steer.token    by which its DNS servers read what edges report
├── geo/country.mmdb   which countries addresses are in
├── usage.db           the usage journal
├── answers.db         answers that may be given again; idempotency.db: keys of requests
├── responses.db       answers that conversations may go on from, for a day
├── queue.db files.db  batches that wait or were done of late, and their files
├── zones/ZONE/        these last six of the edges in a residency zone
├── catalog.yaml       the operator's own models
├── reserve            room on the disk that the next start can have
├── models/  cache/    model files; compiled kernels and repacked weights
├── terraform-states/  states that a control plane of an earlier version kept
├── logs/              skerry.log of `skerry up --detach`, and one of each node and edge
└── run/               skerry.lock (held while it runs), instance.json, control.sock,
                       registry.db (who is there), sockets of nodes
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from skerry_cli.home.errors import StateError
from skerry_regions.private_files import replace_file
from skerry_regions.zones import GLOBAL

MAX_STATE_BYTES = 64 * 1024
JOURNAL_NAME = "usage.db"

RecordT = TypeVar("RecordT", bound=Struct)


class Config(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to reach the platform of this home; kept between runs, so that tokens stay valid."""

    url: str = ""  # of an edge; absent where there is none yet
    account_id: str
    api_token: str
    control_url: str = ""  # of the control plane


class InHome:
    """A file or folder of a home, by its name there."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, home: Home, of: type[Home]) -> Path:
        return home.root / self._name


class InStores(InHome):
    """One that each residency zone has of its own."""

    def __get__(self, home: Home, of: type[Home]) -> Path:
        return home.stores / self._name


@dataclass(frozen=True, slots=True)
class Home:
    """The folder of one platform's state."""

    root: Path
    zone: str = GLOBAL  # of the process that uses it

    config = InHome("config.json")
    tokens = InHome("tokens.json")
    token_audit = InHome("token-audit.log")  # who changed API tokens past the control plane
    secret = InHome("secret")
    cluster_key = InHome("cluster.key")
    control_key = InHome("control.key")
    authority = InHome("authority.pem")
    machine = InHome("machine")
    geo_data = InHome("geo/country.mmdb")  # which countries addresses are in
    cloud_ranges = InHome("geo/clouds.msgpack.gz")  # where clouds publish that theirs are
    steer_token = InHome("dns/steer.token")  # by which DNS servers here read what edges report
    limits = InHome("limits.yaml")
    issuers = InHome("issuers.yaml")  # whose logins count beside API tokens
    spending = InHome("spending.db")
    state_url = InHome("state")  # which servers have what machines share, where a topology says so
    shared = InHome("shared.json")  # what all homes had of the files that they share
    state_mark = InHome("state.json")  # says where the state is, once a copy of it was begun
    state_lock = InHome("run/state.lock")  # held by those who use the stores
    known_models = InHome("known_models.json")  # which models nodes announced
    known_members = InHome("known_members.json")  # of the registry, when an edge last read it
    cache = InHome("cache")
    reserve = InHome("reserve")  # keeps room for the next start; see `home.room`
    run = InHome("run")
    instance = InHome("run/instance.json")
    lock = InHome("run/skerry.lock")
    registry = InHome("run/registry.db")
    logs = InHome("logs")
    log = InHome("logs/skerry.log")

    responses = InStores("responses.db")
    idempotency = InStores("idempotency.db")
    queue = InStores("queue.db")
    files = InStores("files.db")

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Home:
        given = environ.get("SKERRY_HOME")
        return cls(Path(given).expanduser().absolute() if given else Path.home() / ".skerry")

    def in_zone(self, zone: str) -> Home:
        """Return the same for an edge that stands there."""
        return replace(self, zone=zone)

    @property
    def stores(self) -> Path:
        """Return where what requests leave behind is kept: a folder of its own for each zone."""
        return self.root if self.zone == GLOBAL else self.root / "zones" / self.zone

    def zone_key(self, zone: str) -> Path:
        return self.root / "dns" / f"{zone.rstrip('.').lower()}.key"

    def transfer_key(self, zone: str) -> Path:
        return self.zone_key(zone).with_suffix(".transfer")

    def kept_zone(self, zone: str) -> Path:
        """Return what a control plane last said of it."""
        return self.zone_key(zone).with_suffix(".zone.json")

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
    """Return it; None when no `skerry up` has run yet. Raises `StateError` for a damaged file."""
    return read_record(home.config, Config)


def known_config(home: Home) -> Config:
    """Return it; without `skerry up` one in which nothing is known. Raises `StateError`."""
    return read_config(home) or Config(account_id="", api_token="")


def write_config(home: Home, config: Config) -> None:
    """Write what is new: a platform starts on a full disk, too. Raises `StateError`."""
    if read_config(home) != config:
        write_record(home.config, config)


def read_record(path: Path, kind: type[RecordT]) -> RecordT | None:
    """Return a record, or None where there is no file. Raises `StateError`."""
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


def write_record(path: Path, record: Struct) -> None:
    """Replace a record's file. Raises `StateError`."""
    replace_private(path, msgspec.json.format(msgspec.json.encode(record)) + b"\n")


def replace_private(path: Path, content: bytes) -> None:
    """Replace a file whole, readable by its owner only."""
    try:
        replace_file(path, content)
    except OSError as error:
        raise StateError(f"Cannot write {path}: {error.strerror}.") from None
