"""A request behind the rim: who sends it, to which edge, and its body."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TypeVar

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from skerry.errors import BodyTooLarge
from skerry_edge.answer_headers import AnswerHeaders
from skerry_edge.api.bodies import Body, coding_of, object_bytes, unpacked
from skerry_edge.api.fields import HEADER as IGNORED_HEADER
from skerry_edge.api.fields import header_of
from skerry_edge.gate.grants import check_model
from skerry_edge.gate.inside import InsideCall, Priority, Serve
from skerry_edge.gate.principal import Principal
from skerry_edge.generation.edge import Edge
from skerry_edge.telemetry.tracing import Trace
from skerry_edge.text.preparation_debt import SECONDS_PER_BYTE
from skerry_regions.models.catalog import ModelSpec

INLINE_BYTES = 64 << 10  # decoded on the event loop: half a millisecond; more goes to the desk

T = TypeVar("T", bound=Struct)

Handler = Callable[["EdgeRequest"], Awaitable[Response]]


class EdgeRequest(Request):
    """A request that was let in, and what the edge knows of it besides what was sent."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        edge: Edge,
        fields: Mapping[str, str],
        principal: Principal | None,
        residency: str | None,
        inside: InsideCall | None,
        serve: Serve,
        trace: Trace,
        answer_headers: AnswerHeaders,
    ) -> None:
        """`fields` are the header's, by name in lower case; of those given twice the first.
        `serve` is the rim, for what the edge calls of itself."""
        super().__init__(scope, receive, send)
        self.edge = edge
        self.fields = fields
        self._principal = principal
        self.residency = residency  # zone that the request must not leave
        self.inside = inside
        self.priority: Priority = "interactive" if inside is None else inside.priority
        self.serve = serve
        self.trace = trace
        self.answer_headers = answer_headers
        self.step_started: float | None = None  # of a list of which one is tried after another
        self.content = b""  # the body, once it was read
        self._held = 0  # bytes of memory that it takes, and what was made of it
        self._ignored: frozenset[str] = frozenset()  # fields that change nothing

    @property
    def principal(self) -> Principal:
        """Return the caller, whose token has a scope that the operation needs."""
        if self._principal is None:
            raise TypeError("the operation needs no token")
        return self._principal

    async def read(self) -> bytes:
        """Read the whole body, and unpack it at the tenant's desk. Raises `BodyTooLarge` beyond
        the edge's `body_bytes`, `ClientDisconnect` if it breaks, and what `coding_of`, `unpacked`,
        `BodyRoom.take` and `TenantDesk.run` raise.

        Our own server enforces the limit earlier; this one holds under any ASGI server.
        """
        limit, size = self.edge.limits.body_bytes, 0
        pieces: list[bytes] = []
        async for piece in self.stream():
            size += len(piece)
            if size > limit:
                raise BodyTooLarge(f"The request body exceeds {limit} bytes.")
            self.hold(size)
            pieces.append(piece)
        self.trace.prepared_seconds += size * SECONDS_PER_BYTE
        body = b"".join(pieces)
        coding = coding_of(self.fields.get("content-encoding", ""))
        if coding is None:
            self.content = body
        else:
            desk = self.edge.desk.of(self.principal.account_id)
            self.content = await desk.run(lambda: unpacked(body, coding, limit))
            self.trace.prepared_seconds += len(self.content) * SECONDS_PER_BYTE
            self.hold(len(self.content))
        return self.content

    def ignore(self, names: Collection[str]) -> None:
        """Name fields that change nothing in a header of the answer, with those of before."""
        if names:
            self._ignored |= frozenset(names)
            self.answer_headers[IGNORED_HEADER] = header_of(self._ignored)

    def forget_body(self) -> None:
        """Count the body itself no longer: what is left of the answer needs none of it."""
        if 0 < len(self.content) <= self._held:
            self.edge.desk.bodies.give_back(self.principal.account_id, len(self.content))
            self._held -= len(self.content)
        self.content = b""

    def let_go(self) -> None:
        """Count nothing of it any longer: the request is over. Idempotent."""
        if self._held:
            self.edge.desk.bodies.give_back(self.principal.account_id, self._held)
        self._held = 0

    def hold(self, size: int) -> None:
        """Count so many bytes of memory for it in all, if they are many. Raises as
        `BodyRoom.take`."""
        if size > max(self._held, INLINE_BYTES):
            self.edge.desk.bodies.take(self.principal.account_id, size - self._held)
            self._held = size


async def arrive(request: EdgeRequest, spec: ModelSpec) -> None:
    """Count a request for its model, before any work on it.

    Raises what `Admission.arrive` does, or PermissionDenied for a model that the token may not run.
    """
    edge, principal = request.edge, request.principal
    await edge.admission.prepare(principal.account_id, spec.id)
    edge.admission.arrive(principal.account_id, spec.id, request.answer_headers.update)
    if principal.models:
        check_model(spec, principal.models)


async def read_json(request: EdgeRequest, kind: Body[T]) -> T:
    """Read the whole body, and decode it as `decoded` does."""
    return await decoded(request, kind, await request.read())


async def decoded(
    request: EdgeRequest, kind: Body[T], body: bytes, *, is_strict: bool = False
) -> T:
    """Decode JSON, at the desk if it is long, and name the fields that change nothing in a header.

    Raises what `Body.decode` and `TenantDesk.run` raise.
    """
    if len(body) <= INLINE_BYTES:
        request.hold(len(body) + object_bytes(body))
        asked, ignored = kind.decode(body, is_strict=is_strict)
    else:
        desk = request.edge.desk.of(request.principal.account_id)
        request.hold(len(body) + await desk.run(lambda: object_bytes(body)))
        asked, ignored = await desk.run(lambda: kind.decode(body, is_strict=is_strict))
    request.ignore(ignored)
    return asked
