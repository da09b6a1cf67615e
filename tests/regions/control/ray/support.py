"""Launches and what keepers say of them."""

from __future__ import annotations

from typing import Any

from skerry_regions.control.planning.launcher import Launch, NodeSettings, fingerprint
from skerry_regions.control.reconcile.ray.ray_messages import KeeperState, NodeEnd
from skerry_regions.process.launch_folder import LaunchRecord

SETTINGS = NodeSettings(
    region="fra", role="hybrid", model="m", runner="toy", threads=2, launcher="ray"
)
INCARNATION = 7 << 20


def launch(number: int = 0, **values: Any) -> Launch:
    told: dict[str, Any] = {"settings": SETTINGS, "incarnation": INCARNATION} | values
    return Launch(id=f"fra-p-{number}", owner="fra-p", **told)


def kept(
    number: int = 0,
    *,
    now: float = 100.0,
    healthy_at: float = 100.0,
    end: NodeEnd | None = None,
    term: int = 1,
    pid: int = 77,
    **record: Any,
) -> KeeperState:
    """What the keeper of a node says that has been serving for 90 s."""
    said: dict[str, Any] = {
        "id": f"fra-p-{number}", "owner": "fra-p", "kind": "node", "region": "fra",
        "fingerprint": fingerprint(SETTINGS), "address": "tcp:10.0.0.7:0",
        "control": "unix:/run/c", "started": 10.0, "was_ready": True, "incarnation": INCARNATION,
    }  # fmt: skip
    return KeeperState(
        record=LaunchRecord(**(said | record)),
        pid=pid,
        now=now,
        healthy_at=healthy_at,
        end=end,
        term=term,
    )
