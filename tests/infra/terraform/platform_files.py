"""Configurations of whole platforms, and what plugins that were killed may leave."""

from __future__ import annotations

from typing import Any

from tests.e2e.command import MODEL
from tests.e2e.control.control_client import ControlPlane

PLATFORM = f"""\
resource "skerry_region" "fra" {{
  name = "fra"
  iata = "FRA"
}}

resource "skerry_pool" "all" {{
  name     = "all"
  region   = skerry_region.fra.name
  role     = "hybrid"
  runner   = "toy"
  replicas = 1
  threads  = 1
}}

resource "skerry_deployment" "chat" {{
  name  = "chat"
  model = "{MODEL}"
  pools = [skerry_pool.all.id]
}}

resource "skerry_edge_node" "edge" {{
  name       = "edge"
  region     = skerry_region.fra.name
  depends_on = [skerry_deployment.chat]
}}

resource "skerry_api_token" "app" {{
  name   = "app"
  scopes = ["run"]
}}

output "url" {{
  value = skerry_edge_node.edge.url
}}
"""

ALL = {"regions": "ams", "pools": "ams-p", "edge_nodes": "e", "deployments": "d"}
WHOLE = """\
resource "skerry_region" "r" {
  name = "ams"
  iata = "AMS"
}
resource "skerry_pool" "p" {
  name = "p"
  region = skerry_region.r.name
  role = "hybrid"
  wait_for_ready = WAIT
}
resource "skerry_edge_node" "e" {
  name = "e"
  region = skerry_pool.p.region
  wait_for_ready = WAIT
}
resource "skerry_deployment" "d" {
  name = "d"
  model = "@cf/lost/model"
  pools = [skerry_pool.p.id]
  depends_on = [skerry_edge_node.e]
  wait_for_ready = WAIT
}
"""

DRY = """\
resource "skerry_region" "r" {
  name = "ams"
  iata = "AMS"
}
resource "skerry_pool" "p" {
  name     = "p"
  region   = skerry_region.r.name
  role     = "hybrid"
  replicas = 0
}
resource "skerry_edge_node" "e" {
  name     = "e"
  region   = skerry_pool.p.region
  draining = true
}
resource "skerry_deployment" "d" {
  name       = "d"
  model      = "@cf/lost/model"
  pools      = [skerry_pool.p.id]
  depends_on = [skerry_edge_node.e]
  wait_for_ready = false
}
resource "skerry_api_token" "t" {
  name       = "t"
  scopes     = ["run"]
  depends_on = [skerry_deployment.d]
}
"""
"""What is ready without a process: one after the other, so that each creation is a moment."""
EXPECTED = {
    "regions": [{"id": "ams", "name": "ams", "iata": "AMS", "draining": False}],
    "pools": [
        {"id": "ams-p", "name": "p", "region": "ams", "role": "hybrid", "model": None},
    ],
    "edge_nodes": [
        {"id": "e", "name": "e", "region": "ams", "host": "127.0.0.1", "draining": True},
    ],
    "deployments": [
        {"id": "d", "name": "d", "model": "@cf/lost/model", "pools": ["ams-p"]},
    ],
}  # fmt: skip
LASTING = ("id", "name", "region", "iata", "role", "model", "pools", "host", "scopes", "draining")


def written(control: ControlPlane) -> dict[str, list[dict[str, Any]]]:
    """All that the control plane has, but for when, and for ids that are drawn."""
    return {
        collection: [
            {name: each[name] for name in LASTING if name in each and collection in ALL}
            | {"name": each["name"]}
            for each in control.get(collection)["items"]
        ]
        for collection in (*ALL, "api_tokens")
    }
