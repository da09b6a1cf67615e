"""Waiting, and when something counts as ready."""

from __future__ import annotations

import logging
import threading
from typing import Any, cast

import pytest

from skerry_terraform.kit.diagnostics import Diagnostics, ProviderError
from skerry_terraform.kit.provider import CallContext
from skerry_terraform.kit.waiting import TimedOut, WaitInterrupted, duration, wait
from skerry_terraform.provider.api_token import EphemeralApiToken
from skerry_terraform.provider.client import ControlPlane, Unreachable
from skerry_terraform.provider.pool import PoolResource
from skerry_terraform.provider.readiness import DEGRADED_SECONDS, NotReady, ReadinessPoll
from skerry_terraform.provider.refusals import RequestRefused
from skerry_terraform.provider.region import RegionResource


class Stop(threading.Event):
    """Waiting takes no time; what it would take is on `now`."""

    now = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        self.now += timeout or 0.0
        return self.is_set()


def test_waiting_ends_with_a_value_a_deadline_or_a_stop() -> None:
    stop = Stop()
    values = iter([None, None, 0])
    assert wait(lambda: next(values), 10, stop, clock=lambda: stop.now) == 0
    with pytest.raises(TimedOut):
        wait(lambda: None, 10, stop, clock=lambda: stop.now)
    assert stop.now == pytest.approx(10.225, abs=0.01)
    stop.set()
    with pytest.raises(WaitInterrupted):
        wait(lambda: None, 10, stop, clock=lambda: stop.now)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("1h30m", 5400)])
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "0s", "200h", "-1s", "1.5h", "\uff19s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        duration(text)


class Plane:
    """What a control plane would answer."""

    def __init__(self) -> None:
        self.observed = 0
        self.found: dict[str, Any] | None = resource("ready")

    def status(self) -> dict[str, Any]:
        return {"observed_revision": self.observed}

    def get(self, collection: str, id: str) -> dict[str, Any] | None:
        return self.found


class Away(Plane):
    """A control plane that takes a resource, and then cannot be asked about it."""

    def __init__(self, trouble: Exception) -> None:
        super().__init__()
        self.trouble = trouble

    def key_of(self, collection: str, id: str) -> str:
        return "key"

    def acknowledge(self, key: str) -> None:
        pass

    def create(self, collection: str, body: dict[str, Any]) -> dict[str, Any]:
        meta = {"etag": "1", "created_at": "2026-11-21T00:00:00Z", "deleting": False}
        status: dict[str, Any] = {"phase": "pending", "conditions": []}
        return body | {"id": "fra-p", "meta": meta, "status": status}

    def status(self) -> dict[str, Any]:
        raise self.trouble

    def delete(self, collection: str, id: str) -> bool:
        raise self.trouble


@pytest.mark.parametrize(
    ("trouble", "why"),
    [
        (Unreachable("Cannot reach it"), "The control plane cannot be reached."),
        (
            RequestRefused(401, "The token is wrong.", None),
            "It cannot be looked at: The token is wrong.",
        ),
    ],
)
def test_what_cannot_be_looked_at_does_not_count_as_failed(trouble: Exception, why: str) -> None:
    pool, diagnostics = PoolResource(), Diagnostics()
    values = dict.fromkeys(pool.schema.type.attributes) | {
        "name": "p", "region": "fra", "role": "decode", "id": "fra-p",
        "wait_for_ready": True, "timeouts": {"create": "1s"},
    }  # fmt: skip
    ctx = CallContext(
        client=cast(ControlPlane, Away(trouble)),
        stop=threading.Event(),
        diagnostics=diagnostics,
        planned=values,
    )
    state = pool.create(ctx)
    assert (state["id"], state["status"], ctx.saved) == ("fra-p", "pending", state)
    [told] = diagnostics.all
    assert (told.severity, told.summary) == ("warning", "The pool 'fra-p' may not be ready yet")
    assert told.detail.startswith(why)


def test_a_token_that_could_not_be_revoked_is_named() -> None:
    client = cast(ControlPlane, Away(Unreachable("Cannot reach it")))
    ctx = CallContext(
        client=client, stop=Stop(), diagnostics=Diagnostics(), private={"id": "0123456789abcdef"}
    )
    with pytest.raises(ProviderError, match="'0123456789abcdef' was not revoked"):
        EphemeralApiToken().close(ctx)


def resource(phase: str, reason: str = "Starting") -> dict[str, Any]:
    condition = {"reason": reason, "message": "0 of 1 ready", "status": phase == "ready"}
    return {
        "id": "p", "meta": {"etag": "7"}, "status": {"phase": phase, "conditions": [condition]},
    }  # fmt: skip


def test_a_status_counts_once_the_control_plane_has_looked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    plane, now = Plane(), [0.0]
    readiness = ReadinessPoll(
        cast(ControlPlane, plane), "pools", resource("pending"), clock=lambda: now[0]
    )
    assert readiness.poll() is None  # ready, but as it was before the change
    plane.observed = 7
    assert readiness.poll() == plane.found
    plane.found = resource("progressing")
    assert readiness.poll() is None
    assert readiness.poll() is None
    assert readiness.told == "progressing; Starting: 0 of 1 ready"
    assert caplog.messages == ["pools p: ready", f"pools p: {readiness.told}"]  # no change, no word
    plane.found = resource("pending", "NoModel")
    assert readiness.poll() == plane.found


class Taken:
    """A control plane where the name is taken, until what has it is gone."""

    def __init__(self, looks: int, *, deleting: bool) -> None:
        self.looks = looks  # that still find it
        self.deleting = deleting

    def create(self, collection: str, body: dict[str, Any]) -> dict[str, Any]:
        if self.looks:
            raise RequestRefused(409, "is being deleted", "name")
        meta = {"etag": "1", "created_at": "2026-11-21T00:00:00Z", "deleting": False}
        return body | {"id": body["name"], "meta": meta, "status": {}}

    def key_of(self, collection: str, id: str) -> str:
        return "key"

    def acknowledge(self, key: str) -> None:
        self.acknowledged = key

    def get(self, collection: str, id: str) -> dict[str, Any] | None:
        self.looks -= self.deleting
        return {"id": id, "meta": {"deleting": self.deleting}} if self.looks else None


@pytest.mark.parametrize(
    ("looks", "deleting", "told"),
    [
        (3, True, None),
        (1_000_000, True, "still drains"),
        (1, False, "exists already"),
    ],
)
def test_one_that_is_being_deleted_makes_way(looks: int, deleting: bool, told: str | None) -> None:
    region, stop = RegionResource(), Stop()
    values = dict.fromkeys(region.schema.type.attributes) | {"name": "fra", "id": "fra"}
    client = cast(ControlPlane, Taken(looks, deleting=deleting))
    diagnostics = Diagnostics()
    ctx = CallContext(client=client, stop=stop, diagnostics=diagnostics, planned=values)
    if looks > 3:
        stop.set()  # nobody waits for ever
    if told is None:
        assert region.create(ctx)["id"] == "fra"
        assert ctx.private == {"etag": "1"}
    else:
        with pytest.raises(ProviderError, match=told):
            region.create(ctx)


def test_what_keeps_failing_is_given_up() -> None:
    plane, now = Plane(), [0.0]
    plane.observed, plane.found = 7, resource("degraded", "KeepsFailing")
    readiness = ReadinessPoll(
        cast(ControlPlane, plane), "pools", resource("pending"), clock=lambda: now[0]
    )
    for at in (0.0, DEGRADED_SECONDS):
        now[0] = at
        assert readiness.poll() is None
    now[0] += 1
    with pytest.raises(NotReady, match="keeps failing"):
        readiness.poll()
    plane.found = None
    with pytest.raises(NotReady, match="deleted"):
        readiness.poll()
