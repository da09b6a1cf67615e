"""The driver of one Ray cluster: a process of its own, since Ray's core aborts its caller when the
head is away for a minute. Nodes go on without it, and the next driver finds them.

    python -m skerry_regions.control.reconcile.ray.driver HOST:PORT NAMESPACE DESCRIPTOR
"""

from __future__ import annotations

import importlib
import logging
import os
import socket
import sys
from typing import Any

import msgspec

from skerry_regions.control.planning.launcher import Launch, NodeSettings
from skerry_regions.control.reconcile.ray.exposure import (
    AUTH_VARIABLE,
    Exposed,
    check_address,
    check_listeners,
)
from skerry_regions.control.reconcile.ray.keeper import Keeper
from skerry_regions.control.reconcile.ray.ray_messages import (
    MAX_LINE,
    VERSION,
    KeeperState,
    RayOrders,
    RayReport,
)

FIRST_SECONDS = 5.0  # that keepers are given to answer, the first time …
ANSWER_SECONDS = 0.5  # … and from then on: a node that waits for room has no keeper yet
CALLS_AT_ONCE = 4  # of one keeper: a state and a drain may be called together

logger = logging.getLogger(__name__)


class RayDriver:
    """Follows orders by Ray's API: the module `ray`, once it is initialised."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._actor = ray.remote(Keeper)
        self._handles: dict[str, Any] = {}
        self._asked: dict[str, Any] = {}  # answers that have not come, by name
        self._patience = FIRST_SECONDS

    def follow(self, orders: RayOrders) -> RayReport:
        """Return what is there, and do what is to be done. Raises what Ray raises without a
        head."""
        names = [str(name) for name in self._ray.util.list_named_actors()]
        states = self._states(names, orders.term)
        highest = max((each.term for each in states.values()), default=0)
        refused = dict[str, str]()
        if highest <= orders.term:
            for name in {*orders.stop} & {*names}:
                self._stop(name)
            for name in {*orders.drain} & states.keys():
                self._handles[name].drain.remote(orders.term)
            for launch in orders.start:
                if launch.id not in names and (why := self._start(launch, orders.term)):
                    refused[launch.id] = why
        return RayReport(
            keepers=tuple(states.values()),
            silent=tuple(name for name in names if name not in states),
            refused=refused,
            deposed_by=highest if highest > orders.term else 0,
        )

    def _states(self, names: list[str], term: int) -> dict[str, KeeperState]:
        """Return the states of keepers. One that has not answered yet is not called again: calls
        would queue up before a node that waits for room."""
        for gone in self._handles.keys() - {*names}:
            self._forget(gone)
        for name in names:
            if name not in self._asked and (handle := self._handle(name)) is not None:
                self._asked[name] = handle.state.remote(term)
        if not (refs := [*self._asked.values()]):
            return {}
        answered, _ = self._ray.wait(refs, num_returns=len(refs), timeout=self._patience)
        self._patience = ANSWER_SECONDS
        states = dict[str, KeeperState]()
        for name, ref in [*self._asked.items()]:
            if ref in answered:
                del self._asked[name]
                try:
                    states[name] = msgspec.json.decode(self._ray.get(ref), type=KeeperState)
                except (self._ray.exceptions.RayError, msgspec.DecodeError) as error:
                    logger.warning("%s does not answer: %s", name, error)
                    self._forget(name)
        return states

    def _handle(self, name: str) -> Any:
        """Return that of a keeper; None of one that has gone this moment."""
        if name not in self._handles:
            try:
                self._handles[name] = self._ray.get_actor(name)
            except ValueError:
                return None
        return self._handles[name]

    def _forget(self, name: str) -> None:
        self._handles.pop(name, None)
        self._asked.pop(name, None)

    def _stop(self, name: str) -> None:
        if (handle := self._handle(name)) is not None:
            self._ray.kill(handle, no_restart=True)
            self._forget(name)

    def _start(self, launch: Launch, term: int) -> str:
        """Create a keeper; return why Ray refuses to."""
        settings = launch.settings
        assert isinstance(settings, NodeSettings)
        try:
            self._actor.options(
                name=launch.id,
                lifetime="detached",
                max_restarts=0,  # the plan starts again what has ended, wherever it was started
                max_concurrency=CALLS_AT_ONCE,
                num_cpus=settings.threads or 1,
                num_gpus=settings.gpus,
                memory=settings.memory or None,
                scheduling_strategy="SPREAD",
            ).remote(msgspec.json.encode(launch), term)
        except ValueError as error:  # the name is taken since, or an option is wrong
            return str(error)
        return ""


def connect(address: str, namespace: str) -> RayDriver:
    """Raises Exposed, ImportError, or what Ray raises."""
    host = address.rpartition(":")[0].strip("[]")
    check_address(host)
    if os.environ.get(AUTH_VARIABLE) != "token":
        raise Exposed(f"{AUTH_VARIABLE} is not token: Ray would do what anybody tells it")
    check_listeners()
    ray = importlib.import_module("ray")
    ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level="ERROR")
    return RayDriver(ray)


def main(address: str, namespace: str, descriptor: str) -> None:
    """Answer orders until the control plane is gone."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    with socket.socket(fileno=int(descriptor)) as line, line.makefile("rwb") as stream:
        line.set_inheritable(False)
        driver, told = None, ""
        while data := stream.readline(MAX_LINE):
            orders = msgspec.json.decode(data, type=RayOrders)
            if orders.version != VERSION:
                sys.exit(f"orders of version {orders.version}, and this is version {VERSION}")
            try:
                driver = driver or connect(address, namespace)
                report = driver.follow(orders)
                told = ""
            except Exception as error:  # of many kinds, Ray's and its core's
                if told != (told := f"{type(error).__name__}: {error}"[:1024]):
                    logger.exception("nothing can be said of the cluster at %s", address)
                report = RayReport(away=told)
            stream.write(msgspec.json.encode(report) + b"\n")
            stream.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
