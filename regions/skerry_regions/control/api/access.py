"""Rights at the control plane, by role and account, and what is denied.

| | operator | platform's developer | platform's viewer | developer | viewer |
|---|---|---|---|---|---|
| change the platform (`operate`) | yes | | | | |
| read the platform (`observe`) | yes | yes | yes | | |
| make API tokens (`mint`) | of all accounts | of its own | | of its own | |
| list API tokens (`list`) | of all accounts | of its own | of its own | of its own | of its own |

Only the platform's own account has operators.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from skerry_regions.access import AccessRole, Grant
from skerry_regions.control.desired.store import Store
from skerry_regions.control.errors import Busy

OPERATE, OBSERVE, MINT, LIST = ("operate",), ("observe",), ("mint",), ("list",)
DAY_SECONDS = 86_400
CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
INSIDE = "skerry.caller"  # in a scope: whom the console has logged in, which no client can write
NOBODY = "nobody"  # in the audit log: whoever shows no token, or a wrong one

RIGHTS: dict[tuple[AccessRole, bool], frozenset[str]] = {
    ("operator", True): frozenset({"operate", "observe", "mint", "list"}),
    ("developer", True): frozenset({"observe", "mint", "list"}),
    ("viewer", True): frozenset({"observe", "list"}),
    ("developer", False): frozenset({"mint", "list"}),
    ("viewer", False): frozenset({"list"}),
}
"""By role, and whether the account is the platform's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlCaller:
    """The owner of a token or a login. `id` goes into what is made with it."""

    id: str
    account_id: str
    grant: Grant  # what the token may do, its ancestors' bounds included
    is_platforms: bool  # whether the account is the platform's own
    login: str = ""  # `ISSUER:SUBJECT` of one whom an issuer vouches for
    token_days: int | None = None  # that API tokens last at most which it makes

    @property
    def actor(self) -> str:
        """Return what the audit log calls it."""
        return self.login or self.id

    @property
    def rights(self) -> frozenset[str]:
        role = self.grant.role
        if role == "operator" and not self.is_platforms:
            role = "developer"
        return frozenset[str]() if role is None else RIGHTS[role, self.is_platforms]

    @property
    def operates(self) -> bool:
        return "operate" in self.rights

    def lasting_grant(self, now: float) -> Grant:
        """Return what bounds tokens that are made now, in Unix seconds: those of a login end."""
        if self.token_days is None:
            return self.grant
        return replace(self.grant, expires_at=int(now) + self.token_days * DAY_SECONDS)

    @property
    def is_bounded(self) -> bool:
        """Return whether another's token could make them more than they are."""
        return not self.operates or self.grant.is_bounded


class Denials:
    """Notes changes that were denied in the audit log: of the same one, once a minute."""

    SECONDS = 60.0
    MAX_KEPT = 1024

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._noted: OrderedDict[tuple[str, str, str], float] = OrderedDict()

    def note(self, actor: str, method: str, path: str, why: str) -> None:
        """Write a line. Blocks for milliseconds; one that cannot be written is left out."""
        what = path[:200]
        key = (actor, method, what if actor != NOBODY else "")
        now = self._clock()
        if now - self._noted.get(key, float("-inf")) < self.SECONDS:
            return
        self._noted[key] = now
        self._noted.move_to_end(key)
        if len(self._noted) > self.MAX_KEPT:
            self._noted.popitem(last=False)
        try:
            with self._store.writing() as writing:
                writing.audit(
                    actor, method.lower(), "route", what, writing.desired.revision,
                    {"denied": why}, outcome="denied",
                )  # fmt: skip
        except Busy:
            pass
