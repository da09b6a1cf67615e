"""What is written down for a small platform, and what edges then say."""

from __future__ import annotations

import json
from typing import Any

import httpx
from tests.e2e.command import MODEL, SECONDS, Skerry
from tests.e2e.control.control_client import ControlClient, ControlPlane

OWN = "@cf/me/own"
POOL = {"region": "fra", "model": MODEL, "runner": "toy", "threads": 1, "file_tier": "none"}
ISSUERS = """\
issuers:
  - name: acme
    issuer: URL
    audience: [skerry]
    grants:
      - {when: {groups: operators}, account: platform, role: operator}
      - {when: {groups: developers}, account: platform, role: developer}
"""
ASKED: dict[str, Any] = {"prompt": "The sea is " * 30, "raw": True, "seed": 7, "max_tokens": 200}


def prepare(control: ControlPlane) -> None:
    control.make("regions", name="fra", iata="FRA")
    control.make("pools", name="prefill", role="prefill", **POOL)
    control.make("pools", name="decode", role="decode", replicas=2, **POOL)
    control.make("edge_nodes", name="edge", region="fra", host="localhost")
    control.until_ready("regions/fra")


def edge_url(skerry: Skerry) -> str:
    """As the edge's launch record has it: the control plane is not there to ask."""
    record = json.loads((skerry.home / "run" / "launched" / "edge-0.json").read_text())
    return "http://" + str(record["address"]).removeprefix("tcp:")


def names(control: ControlPlane) -> set[str]:
    return {each["name"] for each in control.get("api_tokens?limit=500")["items"]}


def is_made(control: ControlPlane, headers: dict[str, str]) -> httpx.Response | None:
    answer = control.http.post("/api_tokens", json={"name": "by-login"}, headers=headers)
    return answer if answer.status_code == 201 else None


def is_edge(node: dict[str, Any]) -> bool:
    return bool(node["kind"] == "edge")


def is_unknown(control: ControlPlane) -> httpx.Response | None:
    """Whether the edge has forgotten a model whose deployment was removed."""
    control.until_ready("edge_nodes/edge")
    answer = httpx.post(
        f"{edge_url(control.skerry)}/v1/chat/completions",
        json={"model": OWN, "messages": [{"role": "user", "content": "x"}]},
        headers={"authorization": f"Bearer {control.token}"}, timeout=SECONDS,
    )  # fmt: skip
    return answer if answer.status_code == 400 else None


def ask_without_control_plane(control: ControlPlane) -> httpx.Response:
    """Ask for a model that has no node, while nobody can start one."""
    url = control.get("edge_nodes/edge")["status"]["url"]
    limits = control.skerry.home / "limits.yaml"
    limits.write_text("hold_seconds: 0.5\n")
    control.kill()
    try:
        return httpx.post(
            f"{url}/client/v4/accounts/{control.account}/ai/run/{OWN}",
            json=ASKED, headers={"authorization": f"Bearer {control.token}"}, timeout=SECONDS,
        )  # fmt: skip
    finally:
        limits.unlink()
        control.start()


def remove_all(control: ControlPlane) -> None:
    for path in ("edge_nodes/edge", "pools/fra-decode", "pools/fra-prefill", "regions/fra"):
        assert control.http.delete(f"/{path}").status_code == 202


def answers(client: ControlClient) -> bool:
    try:
        return client.http.get("/status").status_code == 200
    except httpx.TransportError:  # it was asked as it died
        return False
