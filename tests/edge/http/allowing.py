"""An edge with limits, and tokens for it."""

from __future__ import annotations

from tests.edge.support import Deployment

from skerry_edge.gate.quotas import AccountAllowance, Quotas
from skerry_edge.limits import Limits

LIMITS = Limits(keep_alive_seconds=0.1, request_seconds=60.0, drain_seconds=1)


def allow(edge: Deployment, **allowance: float) -> None:
    edge.edge.admission.hold_to(Quotas(every_tenant=AccountAllowance(**allowance)))  # type: ignore[arg-type]
