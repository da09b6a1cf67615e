"""Callers whom an OpenID provider vouches for: over HTTP, with its keys, replaced meanwhile."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from tests.edge.gate.deployed_logins import PLATFORM, RESEARCH, Deployed, forgeries, signed
from tests.edge.gate.issuer import OTHER_RSA_KEY, RSA_KEY, SigningKey, b64, new_key, provider
from tests.edge.scripted_region import MODEL, answer
from tests.edge.support import ACCOUNT, deployed

from skerry_edge.gate.oidc import issuer_keys
from skerry_edge.gate.oidc.logins import Logins, login_id
from skerry_edge.gate.oidc.verification import parse_keys
from skerry_edge.ledger.stores import Stores
from skerry_edge.limits import Limits

RESEARCHER: dict[str, Any] = {"groups": ["all", "research"]}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    folder: Path = tmp_path_factory.mktemp("logins")
    logins = Logins(PLATFORM, clock=lambda: whole.now, wall_clock=lambda: time.time() + whole.ahead)
    stores = Stores.in_folder(folder / "stores", edge="edge-1")
    with (
        pytest.MonkeyPatch.context() as patch,
        provider() as known,
        deployed(
            folder, Limits(drain_seconds=1), keeps_batches=True, logins=logins, stores=stores
        ) as edge,
    ):
        edge.region.script = lambda submit: answer("Hello")
        patch.setattr(issuer_keys, "FETCH_SECONDS", 60.0)  # of a busy machine
        whole = Deployed(edge, logins, known)
        yield whole


@pytest.fixture
def acme(served: Deployed) -> Iterator[Deployed]:
    """The same provider for each test, whose keys nobody has looked at yet."""
    served.known.keys = [new_key("first", "RS256")]
    served.known.is_down = False
    served.known.asked.clear()
    served.now = served.ahead = 0.0
    served.logins.follow([])
    served.follow()
    yield served
    served.edge.settle()


@pytest.mark.parametrize(
    "alg", ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"]
)
def test_every_algorithm_with_a_public_key_is_taken(acme: Deployed, alg: str) -> None:
    acme.known.keys = [new_key("only", alg)]
    token = acme.known.token(scope="read run")
    reply = acme.run(token)
    assert (reply.status_code, reply.json()["result"]["response"]) == (200, "Hello")
    (stream,) = acme.edge.region.streams[-1:]
    assert stream.submit.tenant == ACCOUNT


def test_keys_are_followed_while_they_are_replaced(acme: Deployed) -> None:
    former, next = acme.known.keys[0], new_key("second", "ES256")
    paths = [f"/realms/acme{path}" for path in ("/.well-known/openid-configuration", "/keys")]
    old = acme.known.token(former, scope="run")
    assert [acme.run(old).status_code for _ in range(3)] == [200] * 3
    assert acme.known.asked == dict.fromkeys(paths, 1)

    acme.known.keys = [former, next]  # announced, and used at once
    acme.now = issuer_keys.RETRY_SECONDS
    assert acme.run(acme.known.token(next, scope="run")).status_code == 200
    assert acme.known.asked == dict.fromkeys(paths, 2)
    assert acme.run(old).status_code == 200

    acme.known.keys = [next]  # the former is withdrawn: also a token that was seen ends with it
    acme.now = 400.0
    assert acme.run(old).status_code == 200, "behind this request it looks"
    eventually_refused(acme, old)
    assert acme.run(acme.known.token(next, scope="run")).status_code == 200


def eventually_refused(acme: Deployed, token: str) -> None:
    deadline = time.monotonic() + 60
    while acme.run(token).status_code != 401:
        assert time.monotonic() < deadline, "it works for ever"
        time.sleep(0.05)


def test_unknown_keys_do_not_make_an_edge_ask_for_each(acme: Deployed) -> None:
    assert acme.run(acme.known.token(scope="run")).status_code == 200
    acme.now = issuer_keys.RETRY_SECONDS
    for index in range(30):
        forged = SigningKey(f"key-{index}", "RS256", OTHER_RSA_KEY)
        assert acme.run(acme.known.token(forged, scope="run")).status_code == 401
    assert acme.known.asked["/realms/acme/keys"] == 2


def test_an_issuer_that_is_away(acme: Deployed) -> None:
    acme.known.is_down = True
    unknown = acme.run(acme.known.token(scope="run"))
    assert (unknown.status_code, unknown.headers["retry-after"]) == (503, "10")
    assert acme.edge.client.get("/v1/models").status_code == 200, "API tokens are as ever"
    acme.known.is_down, acme.now = False, 10.0
    token = acme.known.token(scope="run")
    assert acme.run(token).status_code == 200
    acme.known.is_down = True
    acme.now += 86_400.0
    assert acme.run(token).status_code == 200, "the keys of before count for a day"
    assert acme.run(acme.known.token(scope="run", sub="bob")).status_code == 200
    acme.now += 1.0
    assert [acme.run(token).status_code for _ in range(2)] == [503, 503]


def test_what_proves_nothing_is_refused(acme: Deployed) -> None:
    """Each as a bearer token over HTTP; beside them one that is right, before and after."""
    good = acme.known.token(scope="run")
    assert acme.run(good).status_code == 200
    found = {}
    for name, token in forgeries(acme.known).items():
        headers = [(b"authorization", b"Bearer " + token.encode("latin-1"))]
        url = f"http://127.0.0.1:{acme.edge.port}/v1/models"
        reply = httpx.get(url, headers=headers, timeout=60, trust_env=False)
        found[name] = reply.status_code, reply.json()["errors"][0]["code"]
    assert found == dict.fromkeys(found, (401, 10000))
    assert len(found) > 40
    assert acme.run(good).status_code == 200


def test_a_login_that_was_good_ends_with_its_token(acme: Deployed) -> None:
    token = acme.known.token(scope="run", exp=int(time.time()) + 3600)
    assert acme.run(token).status_code == 200
    acme.ahead = 3600.0
    assert acme.run(token).status_code == 200, "clocks may differ by 30 seconds"
    acme.ahead = 3660.0
    assert acme.run(token).status_code == 401
    acme.follow(leeway_seconds=300)
    assert acme.run(token).status_code == 200


def test_a_key_without_a_name(acme: Deployed) -> None:
    claims = acme.known.claims(scope="run")
    unnamed = signed(RSA_KEY, "RS256", None, claims)
    assert acme.run(unnamed).status_code == 200
    acme.known.keys.append(SigningKey("second", "RS256", OTHER_RSA_KEY))
    acme.logins.follow([])
    acme.follow()
    assert acme.run(unnamed).status_code == 401, "it could be either"


def test_algorithms_may_be_fewer(acme: Deployed) -> None:
    acme.follow(algorithms=("EdDSA",))
    assert acme.run(acme.known.token(scope="run")).status_code == 401


def test_claims_decide_account_role_and_bounds(acme: Deployed) -> None:
    operator = acme.known.token(realm_access={"roles": ["operators"]})
    assert acme.get(operator, "/metrics").status_code == 200
    researcher = acme.known.token(**RESEARCHER)
    assert acme.get(researcher, "/metrics").status_code == 403
    listed = acme.get(researcher).json()["data"]
    assert listed == [], "it may run models of others only"
    verified = acme.get(researcher, "/client/v4/user/tokens/verify").json()["result"]
    assert verified["id"] == login_id(acme.known.url, RESEARCH, "alice")
    other = acme.known.token(skerry_account=RESEARCH)
    assert acme.get(other).status_code == 200
    assert acme.run(other).status_code == 404, "another account's path"


def test_what_is_queued_needs_a_token_that_lasts(acme: Deployed) -> None:
    url = f"/client/v4/accounts/{ACCOUNT}/ai/run/{MODEL}?queueRequest=true"
    headers = {"authorization": f"Bearer {acme.known.token(scope='run')}"}
    reply = acme.edge.client.post(url, json={"prompt": "x"}, headers=headers)
    assert reply.status_code == 403
    assert "with an API token" in reply.json()["errors"][0]["message"]


def test_usage_names_the_login(acme: Deployed) -> None:
    assert acme.run(acme.known.token(scope="run", sub="usage-bob")).status_code == 200
    acme.edge.settle()
    headers = {"authorization": f"Bearer {acme.edge.token}"}
    path = f"/client/v4/accounts/{ACCOUNT}/ai/usage?by=token"
    found = acme.edge.client.get(path, headers=headers)
    assert "acme:usage-bob" in found.text, found.text


def test_a_key_must_be_strong_and_quick() -> None:
    weak = SigningKey("weak", "RS256", rsa.generate_private_key(65537, 1024))
    good = new_key("good", "ES256")
    whole: list[dict[str, Any]] = [
        weak.jwk(),
        good.jwk() | {"use": "enc"},
        good.jwk() | {"key_ops": ["sign"]},
        good.jwk() | {"alg": "HS256"},
        good.jwk() | {"x": "A" * 5000},
        {"kty": "oct", "k": b64(b"s" * 32), "alg": "HS256", "kid": "secret"},
        {"kty": "RSA", "n": good.jwk()["x"], "e": "AQAB"},
        {"kty": "unheard of"},
        good.jwk(),
    ]
    (found,) = parse_keys(json.dumps({"keys": whole}).encode())
    assert (found.kid, found.algorithms) == ("good", {"ES256"})
    for wrong in (b"", b"[]", b"{}", b'{"keys": 1}', b"[" * 100_000):
        with pytest.raises(ValueError, match="not a JSON Web Key Set"):
            parse_keys(wrong)
