"""A client of a platform's control plane, for tests that run real processes."""

from __future__ import annotations

import json
from typing import Any

import httpx
from tests.e2e.command import Skerry, until


class ControlClient:
    """What `config.json` says of the control plane, and its API."""

    def __init__(self, skerry: Skerry) -> None:
        config = json.loads((skerry.home / "config.json").read_text())
        self.token, self.account = config["api_token"], config["account_id"]
        self.http = httpx.Client(
            base_url=f"{config['control_url']}/control/v1",
            headers={"authorization": f"Bearer {self.token}"},
            timeout=30,
        )

    def make(self, collection: str, **values: Any) -> None:
        answer = self.http.post(f"/{collection}", json=values)
        assert answer.status_code == 201, answer.text

    def patch(self, path: str, **values: Any) -> None:
        answer = self.http.patch(f"/{path}", json=values)
        assert answer.status_code == 200, answer.text

    def get(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get(f"/{path}").json()
        return found

    def until_ready(self, path: str) -> dict[str, Any]:
        def ready() -> Any:
            found = self.get(path)
            return found if found["status"]["phase"] == "ready" else None

        found: dict[str, Any] = until(ready)
        return found

    def nodes(self) -> dict[str, dict[str, Any]]:
        return {node["id"]: node for node in self.get("nodes")["items"]}
