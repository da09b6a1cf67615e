"""Logins: callers who show a JSON Web Token of an issuer instead of an API token of ours."""

from __future__ import annotations

import hashlib
import importlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from skerry_edge.gate.oidc.issuers import Issuer, LoginGrant
from skerry_edge.gate.principal import Principal
from skerry_edge.money.caps import Budget, Caps

if TYPE_CHECKING:  # cryptography is loaded with the first issuer
    from skerry_edge.gate.oidc.issuer_keys import IssuerKeys

MAX_VERIFIED = 10_000  # tokens whose signature is not checked again
MAX_LIVE = 100_000  # logins whose requests may still run
RUN_SECONDS = 3600.0  # beyond the token's end: a request that it began may go on
MAX_SUBJECT = 255  # characters, as OpenID Connect has it
LOG_SECONDS = 1.0  # between two lines about refused tokens

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Verified:
    principal: Principal
    ends: float  # Unix seconds, leeway included
    keys: IssuerKeys
    generation: int  # of the keys


class Logins:
    """Whom issuers vouch for. Lives on one event loop; without issuers it knows no one.

    A signature is checked once per token (about 0.1 ms), and the token is remembered by its hash
    until it ends or its issuer's keys change.
    """

    def __init__(
        self,
        platform: str,
        *,
        fetch: Callable[[Issuer], bytes] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`platform` is the platform's own account, `fetch` reads an issuer's keys on a thread."""
        self._platform = platform
        self._fetch = fetch
        self._clock = clock
        self._wall_clock = wall_clock
        self._issuers: dict[str, tuple[Issuer, IssuerKeys]] = {}  # by the claim `iss`
        self._verified: OrderedDict[bytes, _Verified] = OrderedDict()  # by the token's hash
        self._live: OrderedDict[str, float] = OrderedDict()  # until when, in Unix seconds
        self._logged_at = float("-inf")

    def follow(self, issuers: Sequence[Issuer]) -> None:
        """Take these issuers from now on; the keys of those that stay are kept."""
        former, self._issuers = self._issuers, {}
        for issuer in issuers:
            known = former.get(issuer.issuer)
            if known is not None and _has_same_keys(known[0], issuer):
                keys = known[1]
            else:
                keys = self._new_keys(issuer)
            self._issuers[issuer.issuer] = issuer, keys
        self._verified.clear()
        names = {issuer.name for issuer in issuers}
        for login in [each for each in self._live if each.partition(":")[0] not in names]:
            del self._live[login]

    async def authenticate(self, token: str) -> Principal | None:
        """Return whose token this is, or None.

        Raises Unavailable when the keys of its issuer are not known now.
        """
        if not self._issuers:
            return None
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        known = self._verified.get(digest)
        now = self._wall_clock()
        if known is None or not _counts(known, now):
            from skerry_edge.gate.oidc.verification import BadToken

            try:
                known = await self._verify(token)
            except BadToken as error:
                self._log(f"a login was refused: {error}")
                return None
            self._verified[digest] = known
            if len(self._verified) > MAX_VERIFIED:
                self._verified.popitem(last=False)
        self._keep_live(known.principal.login, known.ends + RUN_SECONDS, now)
        return known.principal

    def clients(self) -> list[Issuer]:
        """Return the issuers to which a browser may be sent to log in."""
        return [issuer for issuer, _ in self._issuers.values() if issuer.client_id is not None]

    def is_live(self, login: str) -> bool:
        """Return whether requests of a login may go on: its issuer still counts."""
        return self._live.get(login, 0.0) > self._wall_clock()

    async def close(self) -> None:
        """End what is on its way to issuers."""
        for _, keys in self._issuers.values():
            await keys.close()

    async def _verify(self, token: str) -> _Verified:
        """Raises BadToken or Unavailable."""
        from skerry_edge.gate.oidc.verification import BadToken, Unproven, proven_claims

        unproven = Unproven.parse(token)
        found = self._issuers.get(unproven.issuer)
        if found is None:
            raise BadToken("its issuer is not known here")
        issuer, keys = found
        if unproven.header.alg not in issuer.algorithms:
            raise BadToken(f"{issuer.name}: it is signed with {unproven.header.alg!r}")
        key = await keys.find(unproven.header)
        if key is None:
            raise BadToken(f"{issuer.name}: it is signed with a key that the issuer has not")
        generation = keys.generation
        claims = proven_claims(unproven, key, issuer)
        granted = issuer.grant_of(claims, self._platform)
        if granted is None:
            raise BadToken(f"{issuer.name}: no grant fits its claims")
        principal = principal_of(issuer, *granted, claims)
        ends = int(claims["exp"]) + issuer.leeway_seconds
        if ends <= self._wall_clock():  # while the keys were fetched, say
            raise BadToken(f"{issuer.name}: it has ended")
        return _Verified(principal, ends, keys, generation)

    def _new_keys(self, issuer: Issuer) -> IssuerKeys:
        from skerry_edge.gate.oidc.issuer_keys import IssuerKeys, fetch_keys

        return IssuerKeys(issuer, self._fetch or fetch_keys, self._clock)

    def _keep_live(self, login: str, until: float, now: float) -> None:
        self._live[login] = max(until, self._live.get(login, 0.0))
        self._live.move_to_end(login)
        if len(self._live) > MAX_LIVE:
            self._live.popitem(last=False)

    def _log(self, line: str) -> None:
        """Log one line a second: strangers can make them."""
        if self._clock() - self._logged_at >= LOG_SECONDS:
            self._logged_at = self._clock()
            logger.info("%s", line)


def load_libraries() -> None:
    """Import what an issuer needs: on a thread, because it takes too long for an event loop."""
    importlib.import_module("skerry_edge.gate.oidc.issuer_keys")


def principal_of(
    issuer: Issuer, account_id: str, grant: LoginGrant, claims: dict[str, Any]
) -> Principal:
    """Return whom claims stand for. Raises BadToken for a subject that cannot be."""
    from skerry_edge.gate.oidc.verification import BadToken

    subject = claims["sub"]
    if not (isinstance(subject, str) and 0 < len(subject) <= MAX_SUBJECT and subject.isprintable()):
        raise BadToken(f"{issuer.name}: its subject is no text of 1 to {MAX_SUBJECT} characters")
    id = login_id(issuer.issuer, account_id, subject)
    what, caps = grant.grant, Caps(per_day=grant.per_day, per_month=grant.per_month)
    return Principal(
        token_id=id,
        account_id=account_id,
        scopes=frozenset(what.scopes) | ({what.role} if what.role is not None else set()),
        role=what.role,
        budgets=() if caps.is_unlimited else (Budget(id, caps),),
        residency=what.residency,
        models=() if what.models is None else (what.models,),
        expires_at=int(claims["exp"]),
        login=f"{issuer.name}:{subject}",
        token_days=grant.token_days,
    )


def login_id(issuer: str, account_id: str, subject: str) -> str:
    """Return the id of a login among API tokens: parent of those that it makes, holder of its cap.

    16 hexadecimal digits, as every token has.
    """
    name = f"{issuer}\0{account_id}\0{subject}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(name, digest_size=8).hexdigest()


def _counts(known: _Verified, now: float) -> bool:
    return (
        now < known.ends and known.keys.are_usable() and known.generation == known.keys.generation
    )


def _has_same_keys(one: Issuer, other: Issuer) -> bool:
    return replace(one, grants=other.grants, audience=other.audience) == other
