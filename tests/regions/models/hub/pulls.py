"""Pulls from a hub of a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.regions.models.hub_server import LocalHub

from skerry_cli.composition.opening import CHECKS
from skerry_regions.models.hub import HubClient
from skerry_regions.models.hub_catalog import HubCatalog, HubDocument, HubModel
from skerry_regions.models.pulling import PullRequest, Resolved, resolve
from skerry_regions.models.sources import Hub
from skerry_regions.models.store import ModelStore


def ignore(_what: str, _share: float) -> None:
    """Progress nobody looks at."""


def pulled(
    hub: LocalHub, tmp_path: Path, asked: PullRequest, *, token: str | None = None
) -> tuple[Resolved, ModelStore]:
    source = Hub(endpoints=(hub.endpoint,), token=token)
    store = ModelStore(tmp_path / "home", hub=source)
    folder = tmp_path / "home" / "models" / "scratch"
    folder.mkdir(parents=True)
    with HubClient(source, sleep=lambda seconds: None) as client:
        found = resolve(asked, client, CHECKS, store.blobs, folder, ignore)
    return found, store


def entry(**facts: Any) -> HubModel:
    usual: dict[str, Any] = {
        "id": "@cf/me/tiny", "weights": "me/tiny", "gguf": "me/tiny-GGUF", "model_type": "llama",
        "context_window": 48, "license": "apache-2.0",
    }  # fmt: skip
    return HubModel(**(usual | facts))


def known(**facts: Any) -> HubCatalog:
    return HubCatalog(HubDocument(models=[entry(**facts)], refused=[]))
