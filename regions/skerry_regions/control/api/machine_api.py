"""What machines call: `/machines/v1`, on a listener of its own that requires their certificates.

Everything but the authority's certificate and joining wants a certificate of ours, of a machine
that was not revoked; whoever shows none has to call us by a name of ours. Messages are those of
`machine_messages`.
"""

from __future__ import annotations

import asyncio
import functools

from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from skerry import __version__
from skerry_regions.control.api.host_api import report
from skerry_regions.control.api.machine_calls import MachineCall, MachineControl, MachineHandler
from skerry_regions.control.api.requests import check_host, json_answer, refusal
from skerry_regions.control.errors import (
    Busy,
    ControlError,
    Forbidden,
    Unauthorized,
    UnknownResource,
    VersionMismatch,
)
from skerry_regions.control.machines.authority import Peer
from skerry_regions.control.machines.book import RENEWABLE_SECONDS, Machine
from skerry_regions.control.machines.joined import reachable
from skerry_regions.control.machines.messages import (
    PREFIX,
    SERVER_NAME,
    VERSIONS_HEADER,
    Announcement,
    AssignmentAnswer,
    Credentials,
    Joined,
    JoinRequest,
    NodeAssignment,
    Orders,
    RenewRequest,
    Withdrawal,
    common_version,
    versions_text,
)
from skerry_regions.registry import Member, RegistryUnavailable

NUM_PEERS = 4096  # certificates whose signature is remembered
UNKNOWN = frozenset({f"{PREFIX}/ca", f"{PREFIX}/join"})  # what is returned to whom we do not know


def create_machine_app(control: MachineControl) -> Starlette:
    """Return the ASGI application, to be served over TLS that shows client certificates."""
    gate = MachineGate(control)
    app = Starlette(
        routes=[
            gate.route("ca", _ca),
            gate.route("join", _join, "POST"),
            gate.route("renew", _renew, "POST"),
            gate.route("assignment", _assignment),
            gate.route("member", _announce, "PUT"),
            gate.route("withdraw", _withdraw, "POST"),
            gate.route("members", _members),
            gate.route("credentials", _credentials),
            gate.route("host", report, "POST"),
        ],
        exception_handlers={
            ControlError: _refused,
            RegistryUnavailable: _away,
            HTTPException: gate.not_routed,
        },
    )
    app.router.redirect_slashes = False  # a redirect would pass the gate, and name routes
    return app


class MachineGate:
    """Lets machines in: deny by default, whether or not there is such a route."""

    def __init__(self, control: MachineControl) -> None:
        self._control = control
        self._hosts = control.hosts | {SERVER_NAME}
        self._peer = functools.lru_cache(NUM_PEERS)(control.authority.peer)

    def route(self, name: str, handler: MachineHandler, method: str = "GET") -> Route:
        """Return the route of a call behind the check of its caller."""

        async def checked(request: Request) -> Response:
            return await handler(MachineCall(self._control, self._admit(request.scope), request))

        return Route(f"{PREFIX}/{name}", checked, methods=[method])

    async def not_routed(self, request: Request, error: Exception) -> Response:
        """Answer a call without a route; a stranger learns nothing of routes."""
        try:
            self._admit(request.scope)
        except ControlError as refused:
            return refusal(refused)
        if isinstance(error, HTTPException) and error.status_code == 405:
            return PlainTextResponse(error.detail, error.status_code, error.headers)
        return refusal(UnknownResource("there is no such route"))

    def _admit(self, scope: Scope) -> str:
        """Return the id of the machine that calls, empty where none need be known.

        Raises `Misdirected`, `VersionMismatch` or `Unauthorized`.
        """
        shown = scope.get("extensions", {}).get("tls", {}).get("client_cert_chain", ())
        peer: Peer | None = self._peer(shown[0]) if shown else None
        if peer is None:
            check_host(scope, self._hosts)
        if scope["path"] != f"{PREFIX}/ca":
            _check_versions(scope)
        return "" if scope["path"] in UNKNOWN else self._machine(scope, peer)

    def _machine(self, scope: Scope, peer: Peer | None) -> str:
        """Return the id of the machine whose certificate was shown."""
        if peer is None:
            raise Unauthorized("Show the certificate that joining gave you.")
        late = self._control.store.clock() - peer.not_after
        if late > RENEWABLE_SECONDS:
            raise Unauthorized("The certificate ended too long ago: join again.")
        if late > 0 and scope["path"] != f"{PREFIX}/renew":
            raise Unauthorized("The certificate has ended: renew it.")
        return peer.machine


def _check_versions(scope: Scope) -> None:
    """Raises VersionMismatch."""
    given = [value for name, value in scope["headers"] if name == VERSIONS_HEADER.encode()]
    theirs = given[0].decode("latin-1") if len(given) == 1 else ""
    if common_version(theirs) is None:
        raise VersionMismatch(
            f"the machine speaks the protocol versions {theirs[:64] or 'of nobody'}, the control "
            f"plane (Skerry {__version__}) {versions_text()}: update the older of the two"
        )


async def _ca(call: MachineCall) -> Response:
    return Response(call.control.authority.pem, media_type="application/x-pem-file")


async def _join(call: MachineCall) -> Response:
    control, asked = call.control, await call.body(JoinRequest)
    machine, signed = await asyncio.to_thread(control.machines.join, asked)
    return _joined(control, machine, signed.pem)


async def _renew(call: MachineCall) -> Response:
    control, asked = call.control, await call.body(RenewRequest)
    id = call.machine
    machine, signed = await asyncio.to_thread(control.machines.renew, id, asked)
    return _joined(control, machine, signed.pem)


def _joined(control: MachineControl, machine: Machine, certificate: str) -> Response:
    return json_answer(
        Joined(
            machine=machine.id,
            certificate=certificate,
            not_after=machine.not_after,
            cluster_key=control.cluster_key,
        )
    )


async def _assignment(call: MachineCall) -> Response:
    control = call.control
    machine = await asyncio.to_thread(control.machines.wanted, call.machine)
    assignment = control.joined.assignment(machine)
    if isinstance(assignment, NodeAssignment):
        await asyncio.to_thread(control.machines.told_to_run, machine, assignment.settings.model)
    return json_answer(AssignmentAnswer(assignment=assignment))


async def _announce(call: MachineCall) -> Response:
    control, told = call.control, await call.body(Announcement)

    def announce() -> tuple[Machine, int]:
        machine = control.machines.wanted(call.machine)
        member = control.admitted(machine, told.member)
        return machine, control.registry.announce(member, told.lease_seconds)

    machine, holder = await asyncio.to_thread(announce)
    return json_answer(
        Orders(
            order=control.joined.order(machine, told),
            holder=holder,
            revocations=control.revocations_beyond(told.revocations),
        )
    )


async def _withdraw(call: MachineCall) -> Response:
    control, told = call.control, await call.body(Withdrawal)

    def withdraw() -> Machine:
        machine = control.machines.wanted(call.machine)
        gone = control.admitted(
            machine,
            Member(
                id=told.id,
                kind="edge" if machine.kind == "edge" else "node",
                region=machine.region,
                incarnation=told.incarnation,
            ),
        )
        control.registry.withdraw(gone.id, gone.incarnation)
        return machine

    control.joined.withdrawn(await asyncio.to_thread(withdraw))
    return json_answer(Orders())


async def _members(call: MachineCall) -> Response:
    control = call.control

    def members() -> list[Member]:
        control.machines.wanted(call.machine)
        return reachable(control.registry.members())

    return json_answer(await asyncio.to_thread(members))


async def _credentials(call: MachineCall) -> Response:
    control, known = call.control, call.request.query_params.get("known", "")

    def credentials() -> Credentials:
        if control.machines.wanted(call.machine).kind != "edge":
            raise Forbidden("credentials are for edges")
        found = control.credentials()
        return found if found.digest != known else replace(found, tokens=None, issuers=None)

    return json_answer(await asyncio.to_thread(credentials))


async def _refused(request: Request, error: Exception) -> Response:
    if not isinstance(error, ControlError):
        raise error
    return refusal(error)


async def _away(request: Request, error: Exception) -> Response:
    return refusal(Busy(f"the registry is away: {error}"))
