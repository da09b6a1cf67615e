"""Where supervised processes come from: children that end with us, or such as others find again."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from signal import Signals
from typing import Protocol

import orjson
from msgspec.structs import replace

from skerry_regions.process.launch_folder import LaunchedKind, LaunchRecord
from skerry_regions.process.local_launcher import (
    Deposed,
    LaunchedProcess,
    LocalLauncher,
    Program,
    boot_time,
)
from skerry_regions.process.log_files import open_log
from skerry_regions.process.spawning import HeldListener

Health = Callable[[], Awaitable[bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """How to start one process.

    The descriptor of its lifeline is appended to `command`, and `--listener-fd` with that of its
    `listener`. With one, two processes may serve beside each other.
    """

    id: str
    command: Sequence[str]
    environ: Mapping[str, str]
    log: Path
    descriptors: Sequence[int] = ()  # to inherit
    healthy: Health | None = None
    listener: HeldListener | None = None
    kind: LaunchedKind = "node"
    region: str = ""
    control: str = ""  # where it answers health checks
    inputs: bytes = b""  # of files that the command names, as far as they decide what it is

    @property
    def fingerprint(self) -> str:
        """Return what is equal for processes that are alike."""
        ours = {name: value for name, value in self.environ.items() if name.startswith("SKERRY_")}
        what = orjson.dumps([[*self.command], ours, self.inputs.hex()], option=orjson.OPT_SORT_KEYS)
        return hashlib.blake2b(what, digest_size=8).hexdigest()


class Child(Protocol):
    """A process that runs, or ran."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    async def wait(self) -> int | None: ...


class Children(Protocol):
    """The processes of one spec, one after the other."""

    adopted: LaunchedProcess | None  # that runs already

    async def start(self, lifeline: int) -> Child:
        """Raises OSError or Deposed."""
        ...

    def signal(self, child: Child, number: Signals) -> None:
        """Send it, unless the child is gone, or another supervisor's by now."""
        ...

    def was_ready(self, child: Child) -> None:
        """Note it for who adopts the child."""
        ...


class OwnChildren:
    """Processes that are ours alone: see `Lifeline.watch`."""

    adopted = None

    def __init__(self, spec: ProcessSpec) -> None:
        self._spec = spec

    async def start(self, lifeline: int) -> Child:
        command, descriptors = command_of(self._spec, lifeline)
        with os.fdopen(open_log(self._spec.log), "ab") as log:
            return await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._spec.environ,
                pass_fds=descriptors,
                start_new_session=True,  # Ctrl-C is ours: it must not end all at once
            )

    def signal(self, child: Child, number: Signals) -> None:
        if isinstance(child, asyncio.subprocess.Process) and child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(number)

    def was_ready(self, child: Child) -> None:
        """Do nothing: no one adopts it."""


class LaunchedChildren:
    """Processes of a launcher, which outlive us."""

    def __init__(self, spec: ProcessSpec, launcher: LocalLauncher, *, beside: bool = False) -> None:
        """`beside`: one is to be started beside that which serves."""
        self._spec = spec
        self._launcher = launcher
        self.name = _name(spec, launcher, beside)
        self.adopted = launcher.list().get(self.name)

    async def start(self, lifeline: int) -> Child:
        spec = self._spec
        record = LaunchRecord(
            id=self.name,
            owner=spec.id,
            kind=spec.kind,
            region=spec.region,
            fingerprint=spec.fingerprint,
            address="" if spec.listener is None else str(spec.listener.address),
            control=spec.control,
            started=boot_time(),
        )
        return self._launcher.start(record, lambda: self._program(lifeline))[0]

    def signal(self, child: Child, number: Signals) -> None:
        if self._launcher.list().get(self.name) is not child:
            return
        with contextlib.suppress(Deposed):
            if number is Signals.SIGKILL:
                self._launcher.stop(self.name)
            else:
                self._launcher.drain(self.name, number)

    def was_ready(self, child: Child) -> None:
        if isinstance(child, LaunchedProcess):
            self._launcher.note(child, replace(child.record, was_ready=True))

    def _program(self, lifeline: int) -> Program:
        command, descriptors = command_of(self._spec, lifeline)
        return Program(
            command=command,
            environ=self._spec.environ,
            log=self._spec.log,
            descriptors=descriptors,
        )


def command_of(spec: ProcessSpec, lifeline: int) -> tuple[list[str], list[int]]:
    """Return the command line, and the descriptors to inherit. Raises OSError."""
    command, descriptors = [*spec.command, str(lifeline)], [*spec.descriptors, lifeline]
    if spec.listener is not None:
        descriptors.append(spec.listener.fileno())
        command += ["--listener-fd", str(descriptors[-1])]
    return command, descriptors


def _name(spec: ProcessSpec, launcher: LocalLauncher, beside: bool) -> str:
    """Return the name of the process that serves as `spec` already, or of one to start."""
    running = launcher.list()
    if spec.listener is None:
        return spec.id  # no two of it run at once
    serving = [
        process.record
        for process in running.values()
        if process.record.owner == spec.id and process.record.draining_since is None
    ]
    if serving and not beside:
        return min(serving, key=lambda record: record.started).id
    names = chain([spec.id], (f"{spec.id}~{number}" for number in count(2)))
    return next(name for name in names if name not in running)
