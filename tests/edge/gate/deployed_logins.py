"""An edge that takes logins of OpenID providers, and tokens that prove nothing."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from typing import Any

import httpx
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from tests.edge.gate.issuer import (
    AUDIENCE,
    OTHER_RSA_KEY,
    RSA_KEY,
    Provider,
    SigningKey,
    b64,
    compact,
    new_key,
)
from tests.edge.scripted_region import MODEL
from tests.edge.support import ACCOUNT, Deployment

from skerry_edge.gate.oidc.issuers import Issuer, LoginGrant
from skerry_edge.gate.oidc.logins import Logins
from skerry_edge.gate.oidc.verification import MAX_JWT_LENGTH

PLATFORM, RESEARCH = "a" * 32, "b" * 32
GRANTS = (
    LoginGrant(when={"realm_access.roles": "operators"}, account=PLATFORM, role="operator"),
    LoginGrant(when={"groups": "research"}, account=RESEARCH, role="developer",
               models=("@cf/other/*",), per_day=5.0),
    LoginGrant(when={"scope": "run"}, account=ACCOUNT, scopes=("run",)),
    LoginGrant(account_claim="skerry_account"),
)  # fmt: skip
ROOT = {"sub": "root"}


class Deployed:
    """An edge that takes a provider's tokens."""

    def __init__(self, edge: Deployment, logins: Logins, known: Provider) -> None:
        self.edge, self.logins, self.known = edge, logins, known
        self.now = 0.0  # of the edge's view of keys
        self.ahead = 0.0  # seconds by which its time of day is

    def get(self, token: str, path: str = "/v1/models") -> httpx.Response:
        headers = {"authorization": f"Bearer {token}"}
        return httpx.get(f"http://127.0.0.1:{self.edge.port}{path}", headers=headers, timeout=60)

    def run(self, token: str, **body: Any) -> httpx.Response:
        return self.edge.client.post(
            f"/client/v4/accounts/{ACCOUNT}/ai/run/{MODEL}",
            json={"prompt": "x"} | body,
            headers={"authorization": f"Bearer {token}"},
        )

    def follow(self, **settings: Any) -> None:
        self.logins.follow([issuer_of(self.known, **settings)])


def issuer_of(known: Provider, **settings: Any) -> Issuer:
    usual: dict[str, Any] = {
        "name": "acme", "issuer": known.url, "audience": (AUDIENCE,), "grants": GRANTS,
    }  # fmt: skip
    return Issuer(**(usual | settings))


def signed(key: Any, alg: str, kid: str | None, claims: object, **header: Any) -> str:
    named = {"alg": alg} | ({} if kid is None else {"kid": kid}) | header
    return compact(named, claims, SigningKey("", alg, key).sign)


def forgeries(known: Provider) -> dict[str, str]:
    claims = known.claims(scope="run")
    good = known.token(scope="run")
    head, body, signature = good.split(".")
    pem = RSA_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def with_secret(alg: str) -> str:
        return compact(
            {"alg": alg, "kid": "first"}, claims,
            lambda message: hmac.digest(pem, message, hashlib.sha256),
        )  # fmt: skip

    now = int(time.time())
    other = SigningKey("first", "RS256", OTHER_RSA_KEY)
    elliptic = new_key("first", "ES256")
    return {
        "alg none": compact({"alg": "none", "kid": "first"}, claims, lambda _: b""),
        "alg None": compact({"alg": "None"}, claims, lambda _: b""),
        "the public key as a secret": with_secret("HS256"),
        "… in lower case": with_secret("hs256"),
        "another algorithm of that key": with_secret("RS256"),
        "another's key": known.token(other, scope="run"),
        "an elliptic key of that name": known.token(elliptic, scope="run"),
        "PS256 with a key for RS256": signed(RSA_KEY, "PS256", "first", claims),
        "a key that it brings": signed(
            OTHER_RSA_KEY, "RS256", "mine", claims, jwk=SigningKey("mine", "RS256", RSA_KEY).jwk()
        ),
        "a key at a URL": signed(OTHER_RSA_KEY, "RS256", "x", claims, jku=f"{known.url}/keys"),
        "critical extensions": signed(RSA_KEY, "RS256", "first", claims, crit=["exp"]),
        "another type": signed(RSA_KEY, "RS256", "first", claims, typ="logout+jwt"),
        "no signature": f"{head}.{body}.",
        "cut": good[:-4],
        "a changed claim": f"{head}.{b64(json.dumps(claims | ROOT).encode())}.{signature}",
        "four parts": f"{good}.x",
        "another audience": known.token(scope="run", aud="others"),
        "no audience": known.token(scope="run", aud=None),
        "another issuer": known.token(scope="run", iss=f"{known.url}/"),
        "expired": known.token(scope="run", exp=now - 60),
        "no end": known.token(scope="run", exp=None),
        "an end that is none": known.token(scope="run", exp="tomorrow"),
        "an end in infinity": known.token(scope="run", exp=float("inf")),
        "not yet": known.token(scope="run", nbf=now + 3600),
        "issued later": known.token(scope="run", iat=now + 3600),
        "no time of issue": known.token(scope="run", iat=None),
        "no subject": known.token(scope="run", sub=None),
        "an empty subject": known.token(scope="run", sub=""),
        "a subject of control characters": known.token(scope="run", sub="a\nb"),
        "a subject without end": known.token(scope="run", sub="a" * 256),
        "nothing that is granted": known.token(),
        "the platform's account by a claim": known.token(skerry_account=PLATFORM),
        "an account that is none": known.token(skerry_account="../" + "a" * 29),
        "a list of accounts": known.token(skerry_account=[ACCOUNT]),
        "no JSON": f"{b64(b'nothing')}.{body}.{signature}",
        "claims that are a list": signed(RSA_KEY, "RS256", "first", [claims]),
        "a deep header": f"{b64(b'[' * 700)}.{body}.{signature}",
        "a deep body": f"{head}.{b64(b'[' * 4000)}.{signature}",
        "too long": known.token(scope="run", pad="x" * MAX_JWT_LENGTH),
        "dots": "." * 8000,
        "no base64": f"{head}!.{body}.{signature}",
        "letters of elsewhere": f"é{head}.{body}.{signature}",
    }  # fmt: skip
