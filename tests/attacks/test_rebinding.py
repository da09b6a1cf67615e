"""A web page whose name leads to this machine: it is of our origin, and gets nothing.

The control plane, where machines join, nodes and metrics pages answer to names that they know only;
edges where the operator names theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.attacks.rebinding import PAGES, Listener, control_plane, joining, metrics_page, node
from tests.edge.support import Deployment, deployed
from tests.regions.control.joining import platform

from skerry_cli.composition.serve_edge import edge_names
from skerry_edge.limits import Limits
from skerry_regions.control.machines.messages import SERVER_NAME, NodeAssignment
from skerry_regions.known_hosts import host_of, hosts_of, is_known_host
from skerry_regions.topology.loading import load_topology

FOREIGN = (
    "evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example:8787",
    "evil.example.", "", "192.0.2.7", "[2001:db8::1]:80",
    "evil.example:127.0.0.1", "0.0.0.0",
)  # fmt: skip
OURS = ("127.0.0.1", "127.0.0.1:8788", "localhost", "LOCALHOST:1", "localhost.", "[::1]:9")


@pytest.mark.parametrize("listener", [control_plane, joining, node, metrics_page])
def test_a_foreign_name_gets_nothing(listener: Listener, tmp_path: Path) -> None:
    with listener(tmp_path) as (client, path, headers):
        for host in OURS:
            answer = client.get(path, headers=headers | {"host": host})
            assert answer.status_code == 200, host
        known = client.get(path, headers=headers).content
        for host in FOREIGN:
            answer = client.get(path, headers=headers | {"host": host})
            assert answer.status_code == 421, host
            assert answer.content != known


@pytest.mark.parametrize("listener", [control_plane, node])
def test_pages_change_nothing(listener: Listener, tmp_path: Path) -> None:
    """Also with a token, and by a name that is right: a form of any page can be sent here."""
    with listener(tmp_path) as (client, _, headers):
        path = "/drain" if listener is node else "/control/v1/regions"
        for page in PAGES:
            answer = client.post(path, headers=headers | page, content=b'{"name": "fra"}')
            assert answer.status_code == 403, page
        if listener is control_plane:
            listed = client.get(path, headers=headers).json()["items"]
            assert listed == []


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """An edge that answers to names of its own."""
    folder = tmp_path_factory.mktemp("edge")
    with deployed(
        folder, Limits(drain_seconds=1), hosts=frozenset({"ai.example.com", "2001:db8::7"})
    ) as edge:
        yield edge


NAMES = ("ai.example.com", "AI.EXAMPLE.COM:443", "[2001:db8::7]", "workers-binding.ai")


@pytest.mark.parametrize("host", [*OURS, *NAMES])
def test_an_edge_answers_to_its_names(named: Deployment, host: str) -> None:
    assert named.client.get("/v1/models", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", [host for host in FOREIGN if host])
def test_an_edge_with_names_answers_to_no_other(named: Deployment, host: str) -> None:
    for path in ("/v1/models", "/openapi.json", "/no/such/route"):
        answer = named.client.get(path, headers={"host": host})
        assert (answer.status_code, answer.json()["errors"][0]["code"]) == (421, 5004), path
    assert named.client.get("/healthz", headers={"host": host}).status_code == 200


def test_an_edge_without_names_answers_to_all(tmp_path: Path) -> None:
    with deployed(tmp_path, Limits(drain_seconds=1)) as edge:
        assert edge.client.get("/v1/models", headers={"host": "evil.example"}).status_code == 200


def test_the_address_that_a_connection_came_to_is_known() -> None:
    assert is_known_host("10.0.0.5:8788", (), "10.0.0.5")
    assert is_known_host("[2001:0db8::5]", (), "2001:db8::5")
    assert not is_known_host("10.0.0.5:8788", (), "10.0.0.6")
    assert not is_known_host("control:8788", (), "control"), "a name leads anywhere"
    assert not is_known_host("", (), "")


def test_hosts_that_are_written_down() -> None:
    assert hosts_of(" ai.example.com, AI2.example.com.,,[::1]") == {
        "ai.example.com", "ai2.example.com", "::1",
    }  # fmt: skip
    assert host_of("AI.example.com:443") == "ai.example.com"
    assert host_of("[2001:DB8::1]:443") == host_of("2001:db8::1") == "2001:db8::1"
    for wrong in ("https://ai.example.com", "ai.example.com:443", "*", "a b"):
        with pytest.raises(ValueError, match="is not a host"):
            hosts_of(wrong)


def test_names_of_a_topologys_edges(tmp_path: Path) -> None:
    path = tmp_path / "topology.yaml"
    path.write_text(
        "regions: [{name: fra, iata: FRA}]\n"
        "edges:\n"
        "  - {name: a, region: fra, hosts: [AI.example.com, '::1']}\n"
        "  - {name: b, region: fra}\n"
    )
    topology = load_topology(path)
    assert edge_names(topology, "a") == {"ai.example.com", "::1"}
    assert edge_names(topology, "b") == edge_names(None, "a") == frozenset()


def test_strangers_call_machines_listener_by_its_names(tmp_path: Path) -> None:
    """On each path, also one that is none; a machine with its certificate calls it as it likes."""
    with platform(tmp_path, hosts=frozenset({"joins.example.com"})) as control:
        with httpx.Client(base_url=f"{control.url}/machines/v1", verify=False) as stranger:
            for host in (SERVER_NAME, "joins.example.com:8789"):
                assert stranger.get("/ca", headers={"host": host}).status_code == 200, host
            for method, path in (("GET", "/ca"), ("POST", "/join"), ("GET", "/x"), ("GET", "/ca/")):
                answer = stranger.request(method, path, headers={"host": "evil.example"})
                assert (answer.status_code, answer.json()["error"]["type"]) == (421, "misdirected")
        link = control.joined("m")
        assert link._client.headers["host"] == SERVER_NAME
        link._client.headers["host"] = "a-name-of-before.example"
        assert isinstance(link.assignment(), NodeAssignment)
        link.close()


def test_an_unknown_name_is_no_way_to_read_health(tmp_path: Path) -> None:
    """Nor is what needs no token: the control plane's own description."""
    with control_plane(tmp_path) as (client, _, _):
        for path, status in (
            ("/healthz", 200), ("/control/v1/openapi.json", 200), ("/control/v1/regions/", 401),
        ):  # fmt: skip
            assert client.get(path).status_code == status
            assert client.get(path, headers={"host": "evil.example"}).status_code == 421
