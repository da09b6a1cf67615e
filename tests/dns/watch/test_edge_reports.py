"""What edges report to a DNS server: real edges over HTTP, with and without TLS and a token."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from tests.edge.serving import serving
from tests.edge.support import ACCOUNT, Deployment, deployed

from skerry_cli.home.state import Config, Home, write_config
from skerry_cli.home.steer_token import steer_token
from skerry_dns.watch.edge_reports import MAX_BYTES, EdgeReports
from skerry_edge.api.app import create_app
from skerry_edge.gate.tokens import TokenStore
from skerry_edge.http.tls import Certificate
from skerry_edge.limits import Limits
from skerry_regions.geo.measured_rtt import MIN_SAMPLES
from skerry_regions.geo.region_report import RegionReport

REPORT = RegionReport(region="fra", queue_seconds=3.5, rtt_seconds={"iad": 0.0805})
PAIRS = Path(__file__).parents[2] / "edge" / "data" / "tls"


@pytest.fixture
def edge(tmp_path: Path) -> object:
    with deployed(tmp_path, Limits(drain_seconds=1), report=lambda: REPORT) as deployment:
        yield deployment


def steering(edge: Deployment) -> str:
    token, _ = edge.edge.tokens.create(account_id=ACCOUNT, scopes=("steer",), now=0)
    return token


def reports(
    port: int,
    token: Callable[[], str],
    *,
    scheme: str = "http",
    host: str = "ai.example.test",
    trusted: Path | None = None,
) -> EdgeReports:
    context = ssl.create_default_context(cafile=None if trusted is None else str(trusted))
    return EdgeReports(f"{scheme}://127.0.0.1:{port}", host, token, context)


def test_a_report_is_read_with_a_token_of_its_scope(edge: Deployment) -> None:
    reading = reports(edge.port, lambda: steering(edge))
    assert asyncio.run(reading()) == REPORT


def test_what_it_holds_and_for_whom(edge: Deployment) -> None:
    def get(**headers: str) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{edge.port}/regions", headers=headers)

    reply = get(authorization=f"Bearer {steering(edge)}")
    assert reply.json() == {
        "region": "fra",
        "queue_seconds": 3.5,
        "rtt_seconds": {"iad": 0.0805},
        "client_rtt_seconds": {},
    }
    assert get().status_code == 401
    tokens = edge.edge.tokens
    token, _ = tokens.create(account_id=ACCOUNT, scopes=("run", "read"), now=0)
    assert get(authorization=f"Bearer {token}").status_code == 403
    models = edge.client.get("/v1/models", headers={"authorization": f"Bearer {steering(edge)}"})
    assert models.status_code == 403  # and it can do nothing else


def test_round_trips_to_clients_by_network(edge: Deployment) -> None:
    """The kernel's, of connections whose first request had a token."""

    def reported() -> dict[str, float]:
        report = asyncio.run(reports(edge.port, lambda: steering(edge))(clients=True))
        assert report is not None
        return dict(report.client_rtt_seconds)

    base = f"http://127.0.0.1:{edge.port}"
    for _ in range(MIN_SAMPLES):
        assert httpx.get(f"{base}/healthz").status_code == 200
        assert httpx.get(f"{base}/v1/models").status_code == 401
    assert reported() == {}
    for _ in range(MIN_SAMPLES):  # on one connection, which counts once
        assert edge.client.get("/v1/models").status_code == 200
    assert reported() == {}
    for _ in range(MIN_SAMPLES):
        headers = dict(edge.client.headers)
        assert httpx.get(f"{base}/v1/models", headers=headers).status_code == 200
    [(network, seconds)] = reported().items()
    assert network == "127.0.0.0/24"
    assert 0.0 < seconds < 0.1
    plain = asyncio.run(reports(edge.port, lambda: steering(edge))())
    assert plain == REPORT


def test_a_token_that_is_refused_is_looked_for_again(
    edge: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    found = ["", "skerry_wrong_token", steering(edge)]
    reading = reports(edge.port, lambda: found.pop(0))

    async def main() -> None:
        with caplog.at_level(logging.WARNING):
            assert await reading() is None
            assert await reading() is None
        assert await reading() == REPORT
        edge.edge.tokens.revoke(edge.edge.tokens.records()[-1].id)
        found.extend(["", ""])
        assert [await reading() for _ in range(3)] == [None] * 3

    asyncio.run(main())
    said = [record.getMessage().partition("nothing: ")[2] for record in caplog.records]
    none = "SKERRY_API_TOKEN has no token (`skerry tokens create --scope steer`)"
    refused = "it answers 401; the scope `steer` is needed"
    assert said == [none, refused, refused, none]  # the last one, which stays so, once


def test_a_token_goes_only_where_the_certificate_is_good(edge: Deployment) -> None:
    """The pair is for 127.0.0.1; neither another name nor another authority will do."""
    certificate = Certificate(PAIRS / "first.pem", PAIRS / "first.key")
    good = PAIRS / "first.pem"
    with serving(
        create_app(edge.edge), Limits(drain_seconds=1), ssl_context=certificate.context
    ) as port:

        async def ask(host: str, trusted: Path) -> RegionReport | None:
            token = steering(edge)
            return await reports(port, lambda: token, scheme="https", host=host, trusted=trusted)()

        assert asyncio.run(ask("127.0.0.1", good)) == REPORT
        assert asyncio.run(ask("ai.example.test", good)) is None
        assert asyncio.run(ask("127.0.0.1", PAIRS / "second.pem")) is None


@pytest.mark.parametrize(
    "body", [b"\xff", b"[]", b'{"queue_seconds":-1}', b'{"region":"' + b"x" * MAX_BYTES + b'"}']
)
def test_what_is_no_report(body: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + body)
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            assert await reports(port, lambda: "skerry_a_b")() is None

    asyncio.run(main())


def test_the_token_of_a_home_is_drawn_once(tmp_path: Path) -> None:
    home = Home(tmp_path)
    environ = {"SKERRY_API_TOKEN": "skerry_of_another_platform"}
    assert steer_token(home, environ) == "skerry_of_another_platform"
    assert steer_token(home, {}) == ""
    write_config(home, Config(account_id=ACCOUNT, api_token="unused"))
    token = steer_token(home, environ)
    assert steer_token(home, environ) == token
    assert home.steer_token.stat().st_mode & 0o777 == 0o600
    tokens = TokenStore(home.tokens)
    principal = tokens.authenticate(token)
    assert principal is not None
    assert (principal.account_id, principal.scopes) == (ACCOUNT, {"steer"})
    tokens.revoke(principal.token_id)
    renewed = steer_token(home, environ)
    assert renewed != token
    assert TokenStore(home.tokens).authenticate(renewed) is not None
