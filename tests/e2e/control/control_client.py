"""A platform's control plane and a client of it, for tests that run real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import httpx
from tests.e2e.command import SECONDS, Skerry, until

from skerry import AI


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
        """Ready by a look that saw every change made so far; what it says then."""
        revision = self.get("status")["revision"]

        def ready() -> Any:
            if self.get("status")["observed_revision"] < revision:
                return None
            found = self.get(path)
            return found if found["status"]["phase"] == "ready" else None

        found: dict[str, Any] = until(ready)
        return found

    def nodes(self) -> dict[str, dict[str, Any]]:
        return {node["id"]: node for node in self.get("nodes")["items"]}


class ControlPlane(ControlClient):
    """A `skerry control` process, and a client of its API."""

    def __init__(self, skerry: Skerry) -> None:
        self.skerry = skerry
        self.start()

    def start(self) -> None:
        log = self.skerry.home / "control.log"
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "skerry", "control", "--port", "0", "--own"],
                env=self.skerry.environ, stdin=subprocess.DEVNULL, stderr=stderr,
            )  # fmt: skip
        until(lambda: "is ready at" in log.read_text() or self.process.poll())
        super().__init__(self.skerry)

    def kill(self) -> None:
        self.process.kill()
        self._reap()

    def stop(self) -> None:
        self.process.terminate()
        self._reap()
        assert self.process.returncode == 0

    def _reap(self) -> None:
        self.process.wait(SECONDS)
        self.http.close()

    def ai(self) -> AI:
        url = self.until_ready("edge_nodes/edge")["status"]["url"]
        return AI(base_url=url, account_id=self.account, api_token=self.token)
