"""Signatures of JSON Web Tokens (RFC 7519, 8725): which keys there are, and what they have signed.

The key decides what an algorithm may be, and the header only chooses among those: neither `none`
nor a public key taken for a shared secret can be.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from msgspec import Meta, Struct

from skerry_edge.gate.oidc.issuers import Issuer

MAX_JWT_LENGTH = 8192  # characters
MAX_HEADER_LENGTH = 1024  # … of its first part
MAX_KEYS = 64  # of an issuer
MAX_KEY_TEXT = 2048  # characters of one number of a key: RSA of 8,192 bits has 1,366
RSA_BITS = range(2048, 8193)
MAX_EXPONENT_BITS = 32  # a larger one makes each verification slow
TYPES = frozenset({"", "jwt", "at+jwt", "application/at+jwt"})
RSA_ALGORITHMS = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})

VerificationKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey


class BadToken(Exception):
    """A token that proves nothing; the message says why, to the operator's log alone."""


class JoseHeader(Struct, frozen=True):
    """What the first part of a token says. Unverified."""

    alg: Annotated[str, Meta(max_length=16)]
    kid: Annotated[str, Meta(max_length=512)] | None = None
    typ: Annotated[str, Meta(max_length=32)] = ""
    crit: msgspec.Raw | None = None  # extensions that must be understood: none is


class _Nonce(Struct, frozen=True):
    nonce: str | None = None


class _Unverified(Struct, frozen=True):
    iss: str


class _KeyFile(Struct, frozen=True):
    keys: Annotated[list[dict[str, Any]], Meta(max_length=MAX_KEYS)]


@dataclass(frozen=True, slots=True)
class IssuerKey:
    """A public key, by the name that headers call it, and the algorithms that it is for."""

    kid: str | None
    algorithms: frozenset[str]
    key: VerificationKey


@dataclass(frozen=True, slots=True)
class Unproven:
    """A token whose form is right."""

    token: str
    header: JoseHeader
    issuer: str  # that it says it is of

    @classmethod
    def parse(cls, token: str) -> Unproven:
        """Raises BadToken. Costs no more than a pass over `MAX_JWT_LENGTH` characters."""
        if len(token) > MAX_JWT_LENGTH or token.count(".") != 2:
            raise BadToken("it is no JSON Web Token")
        first, second, _ = token.split(".")
        if len(first) > MAX_HEADER_LENGTH:
            raise BadToken("its header is too long")
        header = _decoded(first, JoseHeader)
        if header.crit is not None:
            raise BadToken("it wants extensions that are not known here")
        if header.typ.lower() not in TYPES:
            raise BadToken(f"its type is {header.typ!r}")
        return cls(token, header, _decoded(second, _Unverified).iss)


def parse_keys(raw: bytes) -> tuple[IssuerKey, ...]:
    """Return the keys of a JWKS (RFC 7517) that can be used; others are left out.

    Raises ValueError for what is no JWKS.
    """
    try:
        listed = msgspec.json.decode(raw, type=_KeyFile).keys
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not a JSON Web Key Set: {error}") from None
    found = (_key_of(each) for each in listed)
    return tuple(each for each in found if each is not None)


def chosen(keys: Iterable[IssuerKey], header: JoseHeader) -> IssuerKey | None:
    """Return the key that a header names; one without a name means the only one there is."""
    fitting = [each for each in keys if header.alg in each.algorithms]
    if header.kid is not None:
        return next((each for each in fitting if each.kid == header.kid), None)
    return fitting[0] if len(fitting) == 1 else None


def proven_claims(unproven: Unproven, key: IssuerKey, issuer: Issuer) -> dict[str, Any]:
    """Return the claims of a token that the key has signed, for us, and that is of now.

    Raises BadToken.
    """
    try:
        claims: dict[str, Any] = jwt.decode(
            unproven.token,
            key.key,
            algorithms=[unproven.header.alg],
            audience=issuer.audience,
            issuer=issuer.issuer,
            leeway=issuer.leeway_seconds,
            options={"require": ["exp", "iat", "iss", "aud", "sub"]},
        )
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError, OverflowError) as error:
        raise BadToken(str(error)) from None
    return claims


def nonce_of(token: str) -> str | None:
    """Return what a login sent along with it, of a token that was proven. Raises BadToken."""
    nonce: str | None = _decoded(token.split(".")[1], _Nonce).nonce
    return nonce


def _decoded(part: str, type_: type[Any]) -> Any:
    """Return a part of a token. Raises BadToken."""
    try:
        raw = base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(raw, type=type_)
    except (binascii.Error, msgspec.DecodeError, ValueError, RecursionError):
        raise BadToken("it is no JSON Web Token") from None


def _key_of(listed: dict[str, Any]) -> IssuerKey | None:
    """Return a key for signatures; None for another, or one that is too weak or too slow."""
    if listed.get("use", "sig") != "sig" or "verify" not in listed.get("key_ops", ["verify"]):
        return None
    if any(len(str(listed.get(part, ""))) > MAX_KEY_TEXT for part in ("n", "e", "x", "y")):
        return None
    kid, alg = listed.get("kid"), listed.get("alg")
    try:
        key = jwt.PyJWK({name: value for name, value in listed.items() if name != "alg"}).key
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    algorithms = _algorithms_of(key)
    if alg is not None:
        algorithms &= {alg} if isinstance(alg, str) else frozenset()
    if not algorithms or not isinstance(kid, str | None):
        return None
    return IssuerKey(kid, algorithms, key)


def _algorithms_of(key: object) -> frozenset[str]:
    if isinstance(key, RSAPublicKey):
        is_sound = (
            key.key_size in RSA_BITS and key.public_numbers().e.bit_length() <= MAX_EXPONENT_BITS
        )
        return RSA_ALGORITHMS if is_sound else frozenset()
    if isinstance(key, EllipticCurvePublicKey):
        curve = {"secp256r1": "ES256", "secp384r1": "ES384"}.get(key.curve.name)
        return frozenset() if curve is None else frozenset({curve})
    return frozenset({"EdDSA"}) if isinstance(key, Ed25519PublicKey) else frozenset()
