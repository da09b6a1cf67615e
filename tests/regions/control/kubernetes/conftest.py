"""A control plane over a cluster that answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest
from tests.edge.http.test_tls import PAIRS
from tests.regions.control.joining import Platform, platform
from tests.regions.control.kubernetes.cluster import (
    NAMESPACE,
    Cluster,
    serving_cluster,
)
from tests.regions.control.kubernetes.pods import IMAGE, World, rights
from tests.regions.control.support import MODEL, new

from skerry_regions.control.kubernetes.api_server import (
    ApiServer,
    ClusterAccess,
)


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Platform]:
    with platform(tmp_path) as made:
        new(
            made.store, "pools", name="many", region="fra", role="decode", model=MODEL,
            runner="toy", launcher="kubernetes", threads=2, memory="4GiB", replicas=2,
        )  # fmt: skip
        yield made


@pytest.fixture
def cluster(control: Platform) -> Cluster:
    return Cluster(rights(), control.clock)


@pytest.fixture
async def api(cluster: Cluster, tmp_path: Path) -> AsyncGenerator[ApiServer]:
    (tmp_path / "token").write_text(cluster.token)
    async with serving_cluster(cluster, PAIRS / "first.pem", PAIRS / "first.key") as url:
        access = ClusterAccess(
            server=url, namespace=NAMESPACE, token_file=tmp_path / "token",
            ca_file=PAIRS / "first.pem",
        )  # fmt: skip
        async with ApiServer(access) as made:
            yield made


@pytest.fixture
async def world(control: Platform, cluster: Cluster, api: ApiServer) -> AsyncGenerator[World]:
    own = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "skerry-control-0",
           "ownerReferences": [{"uid": "control"}]},
           "spec": {"containers": [{"name": "control", "image": IMAGE}]}}  # fmt: skip
    cluster.objects["statefulsets", "skerry-control"] = {
        "metadata": {"name": "skerry-control", "uid": "control"}, "spec": {"replicas": 1},
    }  # fmt: skip
    cluster.objects["pods", "skerry-control-0"] = own
    made = World(control, cluster, api)
    with made.links:
        yield made
