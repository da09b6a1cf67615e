"""`skerry control --kubernetes`: pods that its cluster makes are hosts, as their template says."""

from __future__ import annotations

import asyncio
import base64
import re
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.command import MODEL, Skerry, new_home, until
from tests.e2e.control.test_hosts import POOL, HostedPlatform
from tests.e2e.control.test_join import ASKED, Process
from tests.edge.http.test_tls import PAIRS
from tests.regions.control.kubernetes.cluster import NAMESPACE, Cluster, serving_cluster
from tests.regions.control.kubernetes.pods import rights
from tests.regions.drivers.nats_server import free_ports

from skerry_regions.models.model_files import ModelFiles

pytestmark = [pytest.mark.model, pytest.mark.slow]
SET = "skerry-fra-many"
LOOK_SECONDS = 0.1


class Kubelet:
    """A cluster in a thread, whose pods are processes here with addresses of their own."""

    def __init__(self, platform: HostedPlatform) -> None:
        self.platform = platform
        self.cluster = Cluster(rights(), time.time)
        self.cluster.ends_pods = False
        self.url = ""
        self.pods: dict[str, tuple[str, Process]] = {}
        self._volumes: dict[str, Skerry] = {}
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._ready.wait(30)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    async def _run(self) -> None:
        pair = (PAIRS / "first.pem", PAIRS / "first.key")
        async with serving_cluster(self.cluster, *pair) as self.url:
            self._ready.set()
            while not self._stop.is_set():
                self._look()
                await asyncio.sleep(LOOK_SECONDS)

    def _look(self) -> None:
        self.cluster.settle()
        for name, pod in self.cluster.of("pods").items():
            uid, process = self.pods.get(name, ("", None))
            if uid != pod["metadata"]["uid"]:
                self.pods[name] = pod["metadata"]["uid"], self._started(name, pod)
            elif process is not None and process.process.poll() is not None:
                self.cluster.objects.pop(("pods", name))
            elif process is not None and "deletionTimestamp" in pod["metadata"]:
                process.process.send_signal(signal.SIGTERM)

    def _started(self, name: str, pod: dict[str, Any]) -> Process:
        volume = self.platform.folder / name
        if name not in self._volumes:
            volume.mkdir()
            self._volumes[name] = new_home(volume, self.platform.model)
        skerry = self._volumes[name]
        [container] = pod["spec"]["containers"]
        [secret] = [each["secret"] for each in pod["spec"]["volumes"] if "secret" in each]
        data = self.cluster.objects["secrets", secret["secretName"]]["data"]
        token = volume / "token"
        token.write_bytes(base64.b64decode(data["token"]))
        number = int(name.rpartition("-")[2])
        values = {"POD_IP": f"127.0.1.{number + 1}", "POD_NAME": name}
        for each in container["env"]:
            values.setdefault(each["name"], each.get("value", ""))
        args = [
            re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], each)
            for each in container["args"]
        ]
        mounted = [each.replace("/etc/skerry/join/token", str(token)) for each in args]
        return self.platform._run(skerry, "host", *mounted)


@pytest.fixture
def kubelet(
    tmp_path_factory: pytest.TempPathFactory, default_model: ModelFiles
) -> Iterator[Kubelet]:
    platform = HostedPlatform(tmp_path_factory.mktemp("pods"), default_model)
    kubelet = Kubelet(platform)
    try:
        [port] = map(str, free_ports(1))
        token = platform.folder / "account-token"
        token.write_text(kubelet.cluster.token)
        platform.start(
            "--kubernetes", kubelet.url, "--kubernetes-join", f"https://127.0.0.1:{port}",
            "--kubernetes-namespace", NAMESPACE, "--kubernetes-token-file", str(token),
            "--kubernetes-ca-file", str(PAIRS / "first.pem"), "--kubernetes-image", "skerry:test",
            port=port,
        )  # fmt: skip
        platform.client.make("regions", name="fra", iata="FRA")
        pool = POOL | {"launcher": "kubernetes", "memory": "1GiB"}
        platform.client.make("pools", name="many", replicas=1, **pool)
        platform.client.make("edge_nodes", name="edge", region="fra")
        yield kubelet
    finally:
        platform.close()
        kubelet.close()


@pytest.mark.timeout(300)
def test_pods_join_serve_and_go(kubelet: Kubelet) -> None:
    platform = kubelet.platform
    until(lambda: platform.ready() == 1)
    with platform.ai() as ai:
        assert ai.run(MODEL, ASKED)["usage"]["completion_tokens"] > 0
        platform.client.patch("pools/fra-many", replicas=2)
        until(lambda: platform.ready() == 2)
        nodes = platform.client.nodes()
        addresses = {nodes[f"fra-many-{number}"]["address"] for number in range(2)}
        assert addresses == {"tcp:127.0.1.1:8790", "tcp:127.0.1.2:8790"}
        kubelet.cluster._delete("pods", f"{SET}-0", None)  # as by a drain of its machine
        until(lambda: f"{SET}-0" in kubelet.pods and platform.ready() == 2)
        assert ai.run(MODEL, ASKED)["usage"]["completion_tokens"] > 0
        platform.client.patch("pools/fra-many", replicas=None, min_replicas=0, max_replicas=2,
                              idle_seconds=1.0)  # fmt: skip
        until(lambda: not [each for each in platform.client.nodes() if "many" in each])
        assert ai.run(MODEL, ASKED)["usage"]["completion_tokens"] > 0, "it waited for a node"
    assert kubelet.cluster.of("statefulsets").keys() == {SET}
