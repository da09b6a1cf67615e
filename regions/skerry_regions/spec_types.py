"""Types of what operators write down, in topologies and to the control plane."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, Struct

from skerry.runners import MAX_RANKS, RUNNERS, STAGE_ADDRESS, FloatsForm, KVForm, RunnerName

_LABEL = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
_SIZE = r"^(none|[0-9]{1,6}(\.[0-9]{1,3})?[KMGT]iB)$"
_IATA = "^[A-Z]{3}$"
Name = Annotated[str, Meta(pattern=_LABEL)]
Size = Annotated[str, Meta(pattern=_SIZE)]
PinShare = Annotated[float, Meta(ge=0.0, le=1.0)]
"""Of a node's KV blocks, that an account may keep cached for the time that it says."""
Streams = Annotated[int, Meta(ge=1, le=1024)]
StepTokens = Annotated[int, Meta(ge=64, le=65_536)]
DraftTokens = Annotated[int, Meta(ge=0, le=64)]
StageAddress = Annotated[str, Meta(pattern=STAGE_ADDRESS)]
NumRanks = Annotated[int, Meta(ge=1, le=MAX_RANKS)]
IataCode = Annotated[str, Meta(pattern=_IATA)]
Latitude = Annotated[float, Meta(ge=-90, le=90)]
Longitude = Annotated[float, Meta(ge=-180, le=180)]
LinkRtt = Annotated[float, Meta(gt=0, le=10)]  # seconds
LinkBandwidth = Annotated[float, Meta(gt=0, le=1e14)]  # bytes per second
IPAddress = Annotated[str, Meta(max_length=45)]
HostName = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,252}$|^[0-9A-Fa-f:.]{2,45}$")
]
HttpURL = Annotated[str, Meta(pattern=r"^https?://[^/?#\s]+$", max_length=300)]  # without a path
PEMFile = Annotated[str, Meta(pattern="^/", max_length=4096)]
PlacementRule = Literal["cost", "nearest", "round-robin"]
ConsoleMode = Literal["off", "loopback", "on"]
"""Whom an edge shows the console: none; who is on its machine, by a name of it; whoever comes."""
DEFAULT_CONSOLE: ConsoleMode = "loopback"
LauncherName = Literal["local", "machines", "kubernetes", "ray"]
"""Where a pool's nodes are started: beside the control plane, on hosts of their region, on pods of
the control plane's cluster, or on the Ray cluster of their region."""
DomainName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_@*.-]{1,253}$")]
UtcSecond = Annotated[
    str, Meta(pattern=r"^20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9]Z$")
]
"""A moment as in RFC 3339, in UTC and to the second: `2027-01-31T00:00:00Z`."""


class ParallelSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Over how many ranks a node divides its model: processes, each with a device if it has any."""

    tensor: NumRanks = 1  # that share each layer
    pipeline: NumRanks = 1  # stages of layers
    stages: Annotated[tuple[StageAddress, ...], Meta(max_length=MAX_RANKS)] = ()
    """Where other machines serve the ranks after the first; none: they are of the node's."""


class EngineSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a pool says of the engine of each of its nodes."""

    threads: Annotated[int, Meta(ge=1, le=1024)] | None = None  # of all its ranks; None: its share
    kv_blocks: Annotated[int, Meta(ge=1, le=1 << 24)] | None = None  # of 64 tokens
    streams: Streams | None = None  # at once; None: as the device has room for
    step_tokens: StepTokens | None = None  # of a step; None: the same
    draft_tokens: DraftTokens | None = None  # of a stream in a step; None: 0 where steps overlap
    file_tier: Size | None = None  # of disk, for KV beyond memory; "none" for none
    pin_share: PinShare | None = None  # None: a quarter
    weights: FloatsForm | None = None  # what floats are kept in; None: as the runner does
    kv: KVForm | None = None  # what KV is kept in; None: as activations
    parallel: ParallelSpec | None = None  # None: as its devices have room for

    def parallel_mistake(self, runner: RunnerName) -> tuple[str, str] | None:
        """Return a field, and what is wrong with it on a kind of runner."""
        if (said := self.parallel) is None:
            return None
        axis = RUNNERS[runner].lacking({"tensor": said.tensor, "pipeline": said.pipeline})
        if axis is not None:
            return f"parallel.{axis}", f"the {runner} runner has no {axis} parallelism"
        if said.tensor * said.pipeline > MAX_RANKS:
            ranks = f"{said.tensor} x {said.pipeline} ranks"
            return "parallel.pipeline", f"{ranks} are more than {MAX_RANKS}"
        if found := stages_mistake(said.stages, said.pipeline, runner):
            return "parallel.stages", found
        return None


def stages_mistake(stages: Sequence[str], pipeline: int, runner: RunnerName) -> str:
    """Return what is wrong with where the ranks of a pipeline are served; empty: nothing."""
    if not stages:
        return ""
    if not RUNNERS[runner].crosses_machines:
        return f"ranks of the {runner} runner are of one machine"
    if len(stages) != pipeline - 1:
        return (
            f"{len(stages)} of pipeline {pipeline}: each rank after the first needs one, "
            "HOST:PORT of a machine that runs `skerry stage`"
        )
    wrong = [each for each in stages if not 0 < int(each.rpartition(":")[2]) < 1 << 16]
    return f"{wrong[0]!r} has no port from 1 to 65535" if wrong else ""


def size_bytes(written: Size) -> int:
    """Return a `Size` in bytes; none is 0."""
    number, unit = (written[:-3], written[-3]) if written != "none" else ("0", "K")
    return int(float(number) * (1 << 10 * (1 + "KMGT".index(unit))))


def console_mode(written: ConsoleMode | bool) -> ConsoleMode:
    """Return what YAML wrote: to it a bare `on` and `off` are true and false."""
    return written if isinstance(written, str) else "on" if written else "off"


def unix_seconds(moment: str) -> int:
    """Return a `UtcSecond` in Unix seconds. Raises ValueError for a day that there is not."""
    return int(datetime.fromisoformat(moment).timestamp())


_READABLE = {
    f"Expected `str` matching regex {pattern!r}": f"expected {words}"
    for pattern, words in {
        _LABEL: "a name of a-z, 0-9 and -, at most 63 of them, - neither first nor last",
        _SIZE: "a size such as 512MiB or 4GiB, or none",
        STAGE_ADDRESS: "HOST:PORT, where a machine serves stages",
        _IATA: "an airport's three capital letters, such as FRA",
    }.items()
}


def readable(told: str) -> str:
    """Return what msgspec reports of a value, with the patterns of these types in words."""
    for regex, words in _READABLE.items():
        told = told.replace(regex, words)
    return told
