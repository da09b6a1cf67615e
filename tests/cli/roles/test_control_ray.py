"""`skerry control --ray`: which clusters it takes, and what has to be there."""

from __future__ import annotations

import argparse
import importlib.util
from typing import Any

import pytest

from skerry_cli.roles.control_plane import ray_cluster, ray_problem


@pytest.mark.parametrize("address", ["10.0.0.5:6379", "127.0.0.1:1", "[fd00::5]:65535"])
def test_a_region_has_the_head_of_its_cluster(address: str) -> None:
    assert ray_cluster(f"fra={address}") == ("fra", address)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fra", "is no IP address"),
        ("10.0.0.5:6379", "is no IP address"),
        ("=10.0.0.5:6379", "is not REGION=HOST:PORT"),
        ("fra=10.0.0.5", "is no IP address"),
        ("fra=10.0.0.5:0", "is not REGION=HOST:PORT"),
        ("fra=10.0.0.5:65536", "is not REGION=HOST:PORT"),
        ("fra=10.0.0.5:ray", "is not REGION=HOST:PORT"),
        ("fra=head.example:6379", "is no IP address"),
        ("fra=9.9.9.9:6379", "would be open to the internet"),
        ("fra=0.0.0.0:6379", "would be open to the internet"),
    ],
)
def test_all_else_is_refused(text: str, why: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=why):
        ray_cluster(text)


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = [("fra", "10.0.0.5:6379")]
    installed = set[str]()

    def find(name: str) -> Any:
        return name if name in installed else None

    monkeypatch.setattr(importlib.util, "find_spec", find)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    assert ray_problem([]) == ""
    assert "pip install '.[ray]'" in ray_problem(clusters)
    installed.add("ray")
    assert "RAY_AUTH_MODE has to be `token`" in ray_problem(clusters)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert ray_problem(clusters) == ""
    assert "a region has one cluster" in ray_problem([*clusters, ("fra", "10.0.0.6:6379")])
