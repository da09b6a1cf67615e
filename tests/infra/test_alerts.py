"""Alerts of the platform fire in real faults, each alone, and end with them."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import time
from collections.abc import Generator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.disks import small_disk
from tests.e2e.command import MODEL, Skerry, new_home, until
from tests.e2e.control.control_client import ControlClient
from tests.infra.loads import a_prompt, load, repeated, traced, try_to_trace
from tests.infra.watching import SLOW, Fault, Prometheus, assert_fires_alone, running

from skerry_regions.models.model_files import ModelFiles

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(900)]

DISK_BYTES = 200 << 20
SPARE = 0.03  # of the disk, that is left free
POOL = f'model: "{MODEL}", runner: toy, threads: 1, file_tier: none'
FILES = {
    "topology": f"""\
regions: [{{name: fra, iata: FRA}}]
pools: [{{name: all, region: fra, role: hybrid, {POOL}}}]
edges:
  - {{name: plain, region: fra}}
  - {{name: secure, region: fra, tls: {{cert: "{{folder}}/edge.pem", key: "{{folder}}/edge.key"}}}}
""",
    "own": f"""\
regions: [{{name: ams, iata: AMS}}]
pools: [{{name: own, region: ams, role: hybrid, {POOL}}}]
""",
}
TARGETS = {
    "skerry-control": {"control"},
    "skerry-edge": {"plain-0", "secure-0"},
    "skerry-node": {"fra-all-0", "ams-own-0"},
}
ANY_CERTIFICATE = "tls_config: {insecure_skip_verify: true}"


def certify(folder: Path, days: int) -> None:
    """Replace the edge's certificate by one that ends after so many days."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "edge")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=days))
        .sign(key, hashes.SHA256())
    )
    (folder / "edge.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    (folder / "edge.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))


@pytest.fixture(scope="module")
def skerry(tmp_path_factory: pytest.TempPathFactory, default_model: ModelFiles) -> Iterator[Skerry]:
    """A platform on a small disk."""
    folder = tmp_path_factory.mktemp("alerts")
    certify(folder, 90)
    with small_disk(folder / "disk", DISK_BYTES) as disk:
        skerry = new_home(disk, default_model)
        for name, text in FILES.items():
            (disk / f"{name}.yaml").write_text(text.replace("{folder}", str(folder)))
        with running(skerry, disk / "topology.yaml"):
            applied = skerry("apply", "-f", str(disk / "own.yaml"))
            assert applied.returncode == 0, applied.stderr
            yield skerry


@pytest.fixture(scope="module")
def prometheus(skerry: Skerry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with Prometheus(
        tmp_path_factory.mktemp("prometheus"), skerry, *SLOW,
        ("    http_sd_configs:", f"    {ANY_CERTIFICATE}\n    http_sd_configs:"),
        ("skerry_control_behind_seconds > 60", "skerry_control_behind_seconds > 6"),
    ) as prometheus:  # fmt: skip
        until(lambda: prometheus.up() == TARGETS)
        until(lambda: prometheus.firing() == set())
        yield prometheus


@contextlib.contextmanager
def certificate_that_ends(skerry: Skerry) -> Generator[None]:
    folder = skerry.home.parents[1]
    certify(folder, 3)
    yield
    certify(folder, 90)


@contextlib.contextmanager
def full_disk(skerry: Skerry) -> Generator[None]:
    disk, path = os.statvfs(skerry.home), skerry.home / "filled"
    with path.open("wb") as file:
        size = disk.f_bavail * disk.f_frsize - int(SPARE * DISK_BYTES)
        os.posix_fallocate(file.fileno(), 0, size)
    yield
    path.unlink()


@contextlib.contextmanager
def held_loop(skerry: Skerry) -> Generator[None]:
    """The thread of an edge's event loop is stopped for half a second, again and again."""
    edge = process_of(skerry, "plain")
    try_to_trace(edge)

    def hold() -> None:
        with traced(edge) as thread:
            thread.stop()
            time.sleep(0.6)
            thread.go_on()
        time.sleep(0.4)

    with repeated(hold):
        yield


@contextlib.contextmanager
def control_plane_that_cannot_write(skerry: Skerry) -> Generator[None]:
    """Its database is locked, and there is something to write: a node of its has died."""
    client = ControlClient(skerry)
    node = client.nodes()["ams-own-0"]
    client.http.close()
    database = sqlite3.connect(skerry.home / "control.db", isolation_level=None)
    database.execute("BEGIN IMMEDIATE")
    os.kill(node["pid"], signal.SIGKILL)
    yield
    database.execute("ROLLBACK")
    database.close()


@contextlib.contextmanager
def frozen_edge(skerry: Skerry) -> Generator[None]:
    edge = process_of(skerry, "plain")
    os.kill(edge, signal.SIGSTOP)
    yield
    os.kill(edge, signal.SIGCONT)


@contextlib.contextmanager
def node_that_crashes(skerry: Skerry) -> Generator[None]:
    """Whenever it is ready."""

    def kill() -> None:
        node = next(each for each in skerry.status()["nodes"] if each["id"] == "fra-all-0")
        if node["pid"] and node["state"] == "ready":
            os.kill(node["pid"], signal.SIGKILL)

    with repeated(kill):
        yield


@contextlib.contextmanager
def pool_that_cannot_change(skerry: Skerry) -> Generator[None]:
    """It is to run a model that is nowhere; its node runs on."""
    with applied(skerry, FILES["own"].replace(MODEL, "@cf/no/such")):
        yield
        assert "pool ams-own is degraded: 5007" in skerry("status").stderr


@contextlib.contextmanager
def pool_that_never_starts(skerry: Skerry) -> Generator[None]:
    """The process of its only node stands still before it is ready."""
    more = f", {{name: more, region: ams, role: hybrid, {POOL}}}]\n"
    client, frozen = ControlClient(skerry), set[int]()

    def freeze() -> None:
        node = client.nodes().get("ams-more-0")
        if node is not None and node["pid"] and node["state"] != "ready":
            frozen.add(node["pid"])
            os.kill(node["pid"], signal.SIGSTOP)

    with repeated(freeze), applied(skerry, FILES["own"].removesuffix("]\n") + more):
        yield
    for process in frozen:
        os.kill(process, signal.SIGCONT)
    client.http.close()


@contextlib.contextmanager
def applied(skerry: Skerry, text: str) -> Generator[None]:
    """Want something else for a while."""
    file = skerry.home.parent / "changed.yaml"
    file.write_text(text)
    done = skerry("apply", "-f", str(file))
    assert done.returncode == 0, done.stderr
    yield
    assert skerry("rollback").returncode == 0


@contextlib.contextmanager
def requests_for_no_model(skerry: Skerry) -> Generator[None]:
    with load(skerry, "plain", 1, a_prompt(1, 1), model="@cf/no/such", pause=0.2):
        yield


@contextlib.contextmanager
def requests_without_room(skerry: Skerry) -> Generator[None]:
    """All tenants together have one at a time."""
    limits = skerry.home / "limits.yaml"
    limits.write_text(f'models: [{{model: "{MODEL}", all_tenants: {{concurrency: 1}}}}]\n')
    with load(skerry, "plain", 4, a_prompt(8, 200)):
        yield
    limits.unlink()


def process_of(skerry: Skerry, edge: str) -> int:
    pid: int = next(each["pid"] for each in skerry.status()["edges"] if each["id"] == f"{edge}-0")
    return pid


@pytest.mark.parametrize(
    ("fault", "alert"),
    [
        (frozen_edge, "SkerryDown"),
        (requests_for_no_model, "SkerryModelNotFound"),
        (requests_without_room, "SkerryFull"),
        (pool_that_cannot_change, "SkerryPoolDegraded"),
        (pool_that_never_starts, "SkerryNoNodes"),
        (node_that_crashes, "SkerryCrashLoop"),
        (control_plane_that_cannot_write, "SkerryControlBehind"),
        (certificate_that_ends, "SkerryCertificateExpires"),
        (full_disk, "SkerryDiskFull"),
        (held_loop, "SkerryLoopLag"),
    ],
)
def test_an_alert_fires_in_its_fault_and_no_other_does(
    skerry: Skerry, prometheus: Prometheus, fault: Fault, alert: str
) -> None:
    assert_fires_alone(prometheus, skerry, fault, alert)
    until(lambda: prometheus.up() == TARGETS)
