"""A real OpenID provider on loopback: discovery, keys that are replaced, tokens signed by hand.

It shares no code with what verifies: the form is RFC 7515's, the arithmetic `cryptography`'s.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from tests.edge.serving import serving

from skerry_edge.limits import Limits

AUDIENCE = "skerry"
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
HASHES: dict[str, hashes.HashAlgorithm] = {
    "256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512(),
}  # fmt: skip


def b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def number(value: int, size: int | None = None) -> str:
    return b64(value.to_bytes(size or (value.bit_length() + 7) // 8, "big"))


@dataclass(frozen=True)
class SigningKey:
    """A private key of the provider, what it calls it, and how it signs."""

    kid: str
    alg: str
    private: Any

    def jwk(self) -> dict[str, Any]:
        public = self.private.public_key()
        named = {"kid": self.kid, "use": "sig", "alg": self.alg}
        if isinstance(public, rsa.RSAPublicKey):
            of = public.public_numbers()
            return named | {"kty": "RSA", "n": number(of.n), "e": number(of.e)}
        if isinstance(public, ec.EllipticCurvePublicKey):
            point, size = public.public_numbers(), (public.key_size + 7) // 8
            curve = {"x": number(point.x, size), "y": number(point.y, size)}
            return named | {"kty": "EC", "crv": f"P-{public.key_size}"} | curve
        return named | {"kty": "OKP", "crv": "Ed25519", "x": b64(public.public_bytes_raw())}

    def sign(self, message: bytes) -> bytes:
        if self.alg == "EdDSA":
            return bytes(self.private.sign(message))
        kind, digest = self.alg[:2], HASHES[self.alg[2:]]
        if kind == "ES":
            size = (self.private.key_size + 7) // 8
            pair = decode_dss_signature(self.private.sign(message, ec.ECDSA(digest)))
            return b"".join(each.to_bytes(size, "big") for each in pair)
        scheme: padding.AsymmetricPadding = padding.PKCS1v15()
        if kind == "PS":
            scheme = padding.PSS(padding.MGF1(digest), digest.digest_size)
        return bytes(self.private.sign(message, scheme, digest))


def new_key(kid: str, alg: str) -> SigningKey:
    if alg == "EdDSA":
        return SigningKey(kid, alg, ed25519.Ed25519PrivateKey.generate())
    if alg.startswith("ES"):
        curve = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1()}[alg]
        return SigningKey(kid, alg, ec.generate_private_key(curve))
    return SigningKey(kid, alg, RSA_KEY)


def compact(header: dict[str, Any], claims: object, sign: Callable[[bytes], bytes]) -> str:
    """Return a signed token (RFC 7515, compact serialisation)."""
    message = f"{b64(json.dumps(header).encode())}.{b64(json.dumps(claims).encode())}"
    return f"{message}.{b64(sign(message.encode()))}"


@dataclass
class Provider:
    """What it publishes now. `url` is its issuer; `asked` counts requests by path."""

    url: str = ""
    keys: list[SigningKey] = field(default_factory=list[SigningKey])
    is_down: bool = False
    asked: dict[str, int] = field(default_factory=dict[str, int])
    codes: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    spoil: dict[str, Any] = field(default_factory=dict[str, Any])  # claims of ID tokens

    def claims(self, **more: Any) -> dict[str, Any]:
        now = int(time.time())
        usual = {
            "iss": self.url, "aud": AUDIENCE, "sub": "alice", "iat": now, "exp": now + 600,
        }  # fmt: skip
        return {name: it for name, it in (usual | more).items() if it is not None}

    def token(self, key: SigningKey | None = None, **more: Any) -> str:
        """Return a token of `alice`; `more` are claims, None leaves one out."""
        key = key or self.keys[0]
        header = {"alg": key.alg, "kid": key.kid, "typ": "JWT"}
        return compact(header, self.claims(**more), key.sign)


@contextmanager
def provider() -> Generator[Provider]:
    """Serve one until the block ends."""
    served = Provider(keys=[new_key("first", "RS256")])

    def answer(request: Request) -> Response:
        path = request.url.path
        served.asked[path] = served.asked.get(path, 0) + 1
        if served.is_down:
            return Response(status_code=503)
        if path.endswith("/keys"):
            return JSONResponse({"keys": [key.jwk() for key in served.keys]})
        return JSONResponse({
            "issuer": served.url, "jwks_uri": f"{served.url}/keys",
            "authorization_endpoint": f"{served.url}/auth",
            "token_endpoint": f"{served.url}/token",
        })  # fmt: skip

    def authorise(request: Request) -> Response:
        """As after a login: back with a code."""
        asked, code = dict(request.query_params), secrets.token_hex(8)
        served.codes[code] = asked
        back = urlencode({"code": code, "state": asked["state"]})
        return RedirectResponse(f"{asked['redirect_uri']}?{back}", 302)

    async def exchange(request: Request) -> Response:
        """Give an ID token for a code and the verifier of its challenge (RFC 7636, 4.6)."""
        form = {name: each[0] for name, each in parse_qs((await request.body()).decode()).items()}
        asked = served.codes.pop(form["code"], {})
        digest = b64(hashlib.sha256(form["code_verifier"].encode()).digest())
        expected = ("authorization_code", asked.get("client_id"), asked.get("redirect_uri"))
        sent = tuple(form.get(name) for name in ("grant_type", "client_id", "redirect_uri"))
        if sent != expected or digest != asked.get("code_challenge"):
            return JSONResponse({"error": "invalid_grant"}, 400)
        claims: dict[str, Any] = {"nonce": asked["nonce"]} | served.spoil
        token = served.token(**claims)
        return JSONResponse({"id_token": token, "access_token": "none", "token_type": "Bearer"})

    app = Starlette(
        routes=[
            Route("/realms/acme/.well-known/openid-configuration", answer),
            Route("/realms/acme/keys", answer),
            Route("/realms/acme/auth", authorise),
            Route("/realms/acme/token", exchange, methods=["POST"]),
        ]
    )
    with serving(app, Limits(drain_seconds=1)) as port:
        served.url = f"http://127.0.0.1:{port}/realms/acme"
        yield served
