"""Pieces of configurations. Nothing in them needs nodes: a pool without a model runs nothing."""

from __future__ import annotations

import json
from pathlib import Path

LOST_MODEL = "@cf/lost/model"
"""A model that the catalog has, and whose files cannot be had."""


def know_lost_model(home: Path) -> None:
    """Write it into the catalog of a home."""
    files = [{"name": "m.gguf", "size": 1, "sha256": "0" * 64}]
    model = {"id": LOST_MODEL, "source": f"file:{home}/lost", "files": files}
    (home / "catalog.yaml").write_text(json.dumps({"models": [model | {"context_window": 64}]}))


def a_region(name: str) -> str:
    return f'resource "skerry_region" "r" {{\n  name = "{name}"\n  iata = "FRA"\n}}\n'


def a_pool(region: str, **more: object) -> str:
    values = {"name": "p", "region": region, "role": "hybrid"} | more
    lines = [f"  {name} = {json.dumps(value)}" for name, value in values.items()]
    return "\n".join(['resource "skerry_pool" "p" {', *lines, "}", ""])


def within(region: str, **more: object) -> str:
    """A region and a pool that comes after it."""
    pool = a_pool(region, **more).replace(f'"{region}"', "skerry_region.r.name")
    return a_region(region) + pool
