"""What every route of the control API needs: what it works on, who calls, and how it answers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from skerry_regions.control.api.access import ControlCaller, Denials
from skerry_regions.control.desired.changes import Changes
from skerry_regions.control.desired.store import Store
from skerry_regions.control.desired.validation import converted
from skerry_regions.control.desired.views import Accounts, AnswerDns, Observer
from skerry_regions.control.errors import ControlError, Malformed, Misdirected, TooLarge
from skerry_regions.control.machines.joining import Joining
from skerry_regions.control.planning.zone_contents import ZoneBook
from skerry_regions.control.reconcile.model_manager import ModelManager
from skerry_regions.control.reconcile.scraping import Monitoring
from skerry_regions.known_hosts import host_of, is_known_host

PREFIX = "/control/v1"
MAX_BODY_BYTES = 8 << 20
DEFAULT_LIMIT, MAX_LIMIT = 100, 500  # items of one page
MAX_KEY_LENGTH = 255  # of an idempotency key
Authenticate = Callable[[str], Awaitable[ControlCaller | None]]
T = TypeVar("T")
ETAG = re.compile(r'(?:W/)?"?([0-9]{1,19}|\*)"?')


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What the API works on."""

    store: Store
    changes: Changes
    observer: Observer
    authenticate: Authenticate  # a bearer token's owner
    denials: Denials
    zones: ZoneBook
    answer_dns: AnswerDns
    models: ModelManager
    accounts: Accounts
    account_id: str  # of the platform
    hosts: frozenset[str] = frozenset()  # that it answers to, beside loopback's and its address
    changed: Callable[[], None]  # called on the event loop after each write
    monitoring: Monitoring
    joining: Joining | None = None  # of a control plane that takes machines
    leader: Callable[[], str] | None = None
    """Of one that follows another: where that is, as far as it is known."""


class ControlRequest(Request):
    """A request that was let in, with what it works on and whose it is."""

    def __init__(
        self, scope: Scope, receive: Receive, control: Control, caller: ControlCaller | None
    ) -> None:
        """`caller` is None where the operation needs no token."""
        super().__init__(scope, receive)
        self.control = control
        self.caller = caller


def control_of(request: Request) -> Control:
    """Return what the API works on."""
    return _admitted(request).control


def caller_of(request: Request) -> ControlCaller:
    """Return the caller, whose rights include the one that the operation needs."""
    caller = _admitted(request).caller
    if caller is None:
        raise TypeError("the operation needs no token")
    return caller


def _admitted(request: Request) -> ControlRequest:
    if not isinstance(request, ControlRequest):
        raise TypeError("the request did not pass the gate")
    return request


def actor_of(request: Request) -> str:
    return caller_of(request).actor


async def note(
    request: Request, action: str, kind: str, id: str, changes: Mapping[str, Any]
) -> None:
    """Write a line of the audit log: what the caller has done that no revision says."""
    store, actor = control_of(request).store, actor_of(request)

    def write() -> None:
        with store.writing() as writing:
            writing.audit(actor, action, kind, id, writing.desired.revision, changes)

    await asyncio.to_thread(write)


def check_host(scope: Scope, hosts: Iterable[str]) -> None:
    """Raise Misdirected for a `Host` that is neither one of `hosts` nor of this machine."""
    given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
    host, own = given[0] if len(given) == 1 else "", (scope.get("server") or ("",))[0]
    if not is_known_host(host, hosts, own):
        raise Misdirected(
            f"The control plane is not {host_of(host)[:253]!r}: start it with `--known-host`, "
            "if that is a name of it."
        )


async def body_of(request: Request) -> bytes:
    """Raises TooLarge, or ClientDisconnect."""
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        if size > MAX_BODY_BYTES:
            raise TooLarge(f"the body is larger than {MAX_BODY_BYTES} bytes")
        pieces.append(piece)
    return b"".join(pieces)


async def object_of(request: Request, *, empty: bytes = b"") -> dict[str, Any]:
    """Return the JSON object that a body is; `empty` stands for a body of no bytes.

    Raises Malformed, TooLarge, or ClientDisconnect.
    """
    try:
        value = msgspec.json.decode(await body_of(request) or empty)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"The body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Malformed("The body must be a JSON object.")
    return value


async def asked_of(request: Request, type_: type[T], *, empty: bytes = b"") -> T:
    """Return the struct that a body is. Raises what `object_of` does, or Invalid."""
    asked: T = converted(type_, await object_of(request, empty=empty))
    return asked


def if_match_of(request: Request) -> str | None:
    """Return the etag, without quotes. Raises Malformed."""
    given = request.headers.get("if-match")
    if given is None:
        return None
    match = ETAG.fullmatch(given.strip())
    if match is None:
        raise Malformed("If-Match takes one etag of this API, or *.")
    return match[1]


def idempotency_key_of(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= MAX_KEY_LENGTH:
        raise Malformed(f"Idempotency-Key takes 1 to {MAX_KEY_LENGTH} characters.")
    return key


def limit_of(request: Request) -> int:
    return number_of(request, "limit", DEFAULT_LIMIT, 1, MAX_LIMIT)


def sequence_of(request: Request) -> int:
    return number_of(request, "after", 0, 0, (1 << 63) - 1)


def number_of(request: Request, name: str, default: int, least: int, most: int) -> int:
    """Return a query parameter within bounds. Raises Malformed."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
        raise Malformed(f"the query parameter {name!r} takes a number from {least} to {most}")
    return int(text)


class Identified(Protocol):
    """What collections have: items with ids, in whose order they are listed."""

    @property
    def id(self) -> str: ...


ItemT = TypeVar("ItemT", bound=Identified)


def page_answer(
    request: Request, items: Iterable[ItemT], shown: Callable[[ItemT], Any] = lambda item: item
) -> Response:
    """Return the page behind `after` of items that are in the order of their ids."""
    after, limit = request.query_params.get("after", ""), limit_of(request)
    behind = [item for item in items if item.id > after]
    next = behind[limit - 1].id if len(behind) > limit else None
    return json_answer({"items": [shown(item) for item in behind[:limit]], "next": next})


def json_answer(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


def refusal(error: ControlError) -> Response:
    headers = {"retry-after": "1"} if error.status == 503 else {}
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return Response(error.body(), error.status, headers, media_type="application/json")
