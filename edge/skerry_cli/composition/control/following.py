"""What a control plane sees while another one leads."""

from __future__ import annotations

from random import Random

from skerry_regions.control.desired.desired import Record
from skerry_regions.control.desired.resources import Status
from skerry_regions.control.desired.views import NodeView, ResourceFailure
from skerry_regions.control.errors import NotLeading
from skerry_regions.control.reconcile.failures import Failures
from skerry_regions.registry import Member


class NothingSeen:
    """The `Seer` of whoever looks at nothing."""

    revision = 0
    num_errors = 0
    seconds_behind = 0.0
    members: tuple[Member, ...] = ()

    def __init__(self) -> None:
        self.failures = Failures(Random())

    def status(self, record: Record) -> Status | None:
        return None

    def nodes(self) -> list[NodeView]:
        return []

    def failing(self) -> list[ResourceFailure]:
        return []

    def drain(self, id: str) -> NodeView:
        raise NotLeading("another control plane leads")
