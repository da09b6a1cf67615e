"""The keeper of one node: an actor of Ray's that forks it, and does nothing else.

A node lives as long as its keeper, and no longer, however that ends: the kernel kills it with the
thread that forked it (PR_SET_PDEATHSIG), which is one that stays. It begins with a byte of the
keeper's, so that one whose keeper has died before never does, and with the lock of its name on this
machine, which the one before may still hold. No request passes through here.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import orjson
from msgspec import structs

from skerry.errors import SkerryError
from skerry_regions.address import Address
from skerry_regions.control.planning.launcher import Launch, NodeSettings
from skerry_regions.control.reconcile.programs import LaunchPrograms
from skerry_regions.control.reconcile.ray.exposure import Exposed, check_address, check_listeners
from skerry_regions.control.reconcile.ray.ray_messages import KeeperState, NodeEnd
from skerry_regions.models.catalog import Catalog, CatalogError
from skerry_regions.models.problems import ModelProblem
from skerry_regions.models.sources import Hub
from skerry_regions.models.store import ModelStore
from skerry_regions.process.launch_folder import LaunchFolder, Slot
from skerry_regions.process.local_launcher import boot_time
from skerry_regions.process.log_files import tail
from skerry_regions.process.pages import is_healthy
from skerry_regions.process.process_lock import holder, locked
from skerry_regions.process.socket_paths import SocketPaths
from skerry_regions.process.spawning import spawn

HEALTH_SECONDS = 2.0  # between two checks
LOCK_SECONDS = 60.0  # that the one before of this name has to end
LOOK_SECONDS = 0.05

BEGIN = b"g"
WAITING = f"""
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, {signal.SIGKILL:d})  # PR_SET_PDEATHSIG
if os.read(int(sys.argv[1]), 1) != {BEGIN!r}:
    sys.exit("its keeper died before it began")
os.execv(sys.argv[2], sys.argv[2:])
"""


class CannotKeep(Exception):
    """The node cannot be started here; the message says why."""


class Keeper:
    """Forks one node, reports how it is, and lets it drain. Safe to call from several threads."""

    def __init__(self, launch: bytes, term: int, host: str = "") -> None:
        """`launch` is a `Launch` in JSON. The node listens at `host`, or where Ray's process of
        this machine is reached."""
        self._launch = msgspec.json.decode(launch, type=Launch)
        self._term = term
        self._lock = threading.Lock()
        self._pid = self._pidfd = 0
        self._end: NodeEnd | None = None
        self._healthy_at = boot_time()
        root = os.environ.get("SKERRY_HOME")
        home = Path(root).expanduser().absolute() if root else Path.home() / ".skerry"
        self._files = LaunchFolder(home / "run" / "ray")
        self._programs = LaunchPrograms(
            home=home,
            files=self._files,
            sockets=SocketPaths.of(home, "ray-sockets"),
            cores=1,
            environ=_without_rays() | {"SKERRY_HOME": str(home)},
            host=host or _address(),
        )
        settings = self._launch.settings
        assert isinstance(settings, NodeSettings)
        self._model = settings.model
        slot = Slot(cpus=settings.threads or 1, memory=settings.memory)
        self._record = structs.replace(self._programs.record(self._launch, None), slot=slot)
        # What a call of ours forks would end with the call's thread.
        threading.Thread(target=self._keep, name="keeper", daemon=True).start()

    def state(self, term: int) -> bytes:
        """Return a `KeeperState` in JSON. Calls of an earlier term are refused from now on."""
        with self._lock:
            self._term = max(self._term, term)
            return msgspec.json.encode(
                KeeperState(
                    record=self._record,
                    pid=self._pid,
                    now=boot_time(),
                    healthy_at=self._healthy_at,
                    end=self._end,
                    term=self._term,
                )
            )

    def drain(self, term: int) -> None:
        """Let the node take nothing new, and end when its streams have."""
        with self._lock:
            if term < self._term or self._end is not None:
                return
            if self._record.draining_since is None:
                self._record = structs.replace(self._record, draining_since=boot_time())
            if self._pidfd:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)

    # --- on the thread that stays ----------------------------------------------------------------

    def _keep(self) -> None:
        began, status, refused = time.monotonic(), None, ""
        try:
            check_address(self._programs.host)
            check_listeners()
            self._install()
            began = time.monotonic()
            status = self._run()
        except (CannotKeep, Exposed, OSError) as error:
            refused = str(error)
        log = self._programs.log(self._launch.id)
        end = NodeEnd(
            seconds=time.monotonic() - began,
            status=status,
            log=str(log),
            last_words="" if refused else tail(log),
            refused=refused,
        )
        with self._lock:
            self._end = end

    def _install(self) -> None:
        """Download the model's files where they are missing. Raises CannotKeep."""
        home = self._programs.home
        try:
            spec = Catalog.load(home).resolve(self._model)
            store = ModelStore(home, hub=Hub.from_environ(os.environ))
            store.pull(spec, lambda what, share: None)
        except (SkerryError, CatalogError, ModelProblem, OSError) as error:
            raise CannotKeep(str(error)) from None

    def _run(self) -> int | None:
        """Return the status of the node, once it has ended; None where it never began."""
        if (lock := self._locked()) is None:
            return None
        ours, theirs = socket.socketpair()
        try:
            with ours, theirs:
                what = self._programs.program(self._launch, None, theirs.fileno())
                waiting = [sys.executable, "-I", "-S", "-c", WAITING, str(theirs.fileno())]
                with self._lock:
                    if self._record.draining_since is not None:
                        return None
                    self._pid = spawn(
                        [*waiting, *what.command], what.environ, what.log, [lock, *what.descriptors]
                    )
                    self._pidfd = os.pidfd_open(self._pid)
                ours.send(BEGIN)
                reports = ours.dup()
        finally:
            os.close(lock)  # ours; the node keeps its own
        _on_thread(lambda: self._follow(reports))
        _on_thread(self._watch)
        _, status = os.waitpid(self._pid, 0)
        return os.waitstatus_to_exitcode(status)

    def _locked(self) -> int | None:
        """Return the lock of the name; None when the node is to begin no more. Who holds it on this
        machine is drained: Ray knows it no longer, or its keeper has died this moment.

        Raises CannotKeep.
        """
        self._files.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._files.path(self._launch.id, "lock")
        until, ended = time.monotonic() + LOCK_SECONDS, 0
        while self._record.draining_since is None:
            try:
                return locked(path)
            except BlockingIOError:
                before = holder(path)
            if time.monotonic() > until:
                raise CannotKeep(f"another {self._launch.id} runs here: process {before}")
            if before is not None and before != ended:
                ended = before
                with contextlib.suppress(ProcessLookupError):
                    os.kill(before, signal.SIGTERM)
            time.sleep(LOOK_SECONDS)
        return None

    # --- beside it -------------------------------------------------------------------------------

    def _follow(self, lifeline: socket.socket) -> None:
        """Take in what the node reports while it starts."""
        with lifeline, lifeline.makefile("rb") as lines, contextlib.suppress(OSError):
            for line in lines:
                if "ready" in orjson.loads(line):
                    self._note_health(is_ready=True)

    def _watch(self) -> None:
        """Poll how the node is, as long as it runs."""
        address = Address.parse(self._record.control)
        while self._end is None:
            if asyncio.run(is_healthy(address)):
                self._note_health()
            time.sleep(HEALTH_SECONDS)

    def _note_health(self, *, is_ready: bool = False) -> None:
        with self._lock:
            self._healthy_at = boot_time()
            if is_ready:
                self._record = structs.replace(self._record, was_ready=True)


def _on_thread(run: Callable[[], None]) -> None:
    threading.Thread(target=run, daemon=True).start()


def _without_rays() -> dict[str, str]:
    """Return the environment without what is Ray's, such as its token."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}


def _address() -> str:
    """Return where this machine's process of Ray's is reached, within an actor of its."""
    return str(importlib.import_module("ray").util.get_node_ip_address())
