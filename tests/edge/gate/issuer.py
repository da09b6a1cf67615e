"""A real OpenID provider on loopback: discovery, keys that are replaced, tokens signed by hand.

It shares no code with what verifies: the form is RFC 7515's, the arithmetic `cryptography`'s.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
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
        return JSONResponse({"issuer": served.url, "jwks_uri": f"{served.url}/keys"})

    app = Starlette(
        routes=[
            Route("/realms/acme/.well-known/openid-configuration", answer),
            Route("/realms/acme/keys", answer),
        ]
    )
    with serving(app, Limits(drain_seconds=1)) as port:
        served.url = f"http://127.0.0.1:{port}/realms/acme"
        yield served
