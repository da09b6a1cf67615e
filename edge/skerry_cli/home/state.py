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
CONTROL_NAME = "control.sock"
SECRET_BYTES = 32
JOURNAL_NAME = "usage.db"
LOCK_SECONDS = 1.0  # longer than another command needs to look at the lock

RecordT = TypeVar("RecordT", bound=Struct)


class Config(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to reach the platform of this home; kept between runs, so that tokens stay valid."""

    url: str = ""  # of an edge; absent where there is none yet
    account_id: str
    api_token: str
    control_url: str = ""  # of the control plane


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
        """Return the same for an edge that stands there."""
        return replace(self, zone=zone)

    @property
    def stores(self) -> Path:
        """Return where what requests leave behind is kept: a folder of its own for each zone."""
        return self.root if self.zone == GLOBAL else self.root / "zones" / self.zone

    @property
    def config(self) -> Path:
        return self.root / "config.json"

    @property
    def tokens(self) -> Path:
        return self.root / "tokens.json"

    @property
    def token_audit(self) -> Path:
        """Return the path of the log of who changed API tokens past the control plane."""
        return self.root / "token-audit.log"

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
        """Return which countries addresses are in."""
        return self.root / "geo" / "country.mmdb"

    @property
    def cloud_ranges(self) -> Path:
        """Return where cloud providers publish that their addresses are."""
        return self.geo_data.with_name("clouds.msgpack.gz")

    def kept_zone(self, zone: str) -> Path:
        """Return what a control plane last said of it."""
        return self.zone_key(zone).with_suffix(".zone.json")

    @property
    def steer_token(self) -> Path:
        """Return the file of the token by which DNS servers of this home read what edges report."""
        return self.root / "dns" / "steer.token"

    @property
    def limits(self) -> Path:
        return self.root / "limits.yaml"

    @property
    def issuers(self) -> Path:
        """Return whose logins count beside API tokens."""
        return self.root / "issuers.yaml"

    @property
    def spending(self) -> Path:
        return self.root / "spending.db"

    @property
    def state_url(self) -> Path:
        """Return which servers have what machines share, where a topology says so."""
        return self.root / "state"

    @property
    def shared(self) -> Path:
        """Return what all homes had of the files that they share."""
        return self.root / "shared.json"

    @property
    def state_mark(self) -> Path:
        """Return what says where the state is, once a copy of it was begun."""
        return self.root / "state.json"

    @property
    def state_lock(self) -> Path:
        """Return what is locked by those who use the stores."""
        return self.run / "state.lock"

    @property
    def responses(self) -> Path:
        return self.stores / "responses.db"

    @property
    def idempotency(self) -> Path:
        return self.stores / "idempotency.db"

    @property
    def queue(self) -> Path:
        return self.stores / "queue.db"

    @property
    def known_models(self) -> Path:
        """Return which models nodes announced."""
        return self.root / "known_models.json"

    @property
    def known_members(self) -> Path:
        """Return who was in the registry when an edge last read it."""
        return self.root / "known_members.json"

    @property
    def files(self) -> Path:
        return self.stores / "files.db"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def reserve(self) -> Path:
        """Return the file that keeps room for the next start; see `home.room`."""
        return self.root / "reserve"

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
    """Return it; None when no `skerry up` has run yet. Raises `StateError` for a damaged file."""
    return read_record(home.config, Config)


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
