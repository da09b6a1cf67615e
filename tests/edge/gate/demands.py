"""Admission of an edge, and demands that ask for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import msgspec
from tests.clock import Clock

from skerry.errors import SkerryError
from skerry_edge.gate.admission import Admission, Place
from skerry_edge.gate.caller import Caller
from skerry_edge.gate.quotas import AccountAllowance, Quotas
from skerry_edge.gate.request_demand import RequestDemand
from skerry_edge.money.caps import Budget
from skerry_regions.models.catalog import Price

MODEL = "@cf/test/bytes"
ME, OTHER = "a" * 32, "b" * 32
FREE = Price()


def caller(tenant: str = ME, budgets: tuple[Budget, ...] = ()) -> Caller:
    return Caller(request_id="r", tenant=tenant, budgets=budgets, started=0.0, deadline=1.0)


def demand(
    tenant: str = ME, prompt: int = 1, output: int = 0, model: str = MODEL, choices: int = 1
) -> RequestDemand:
    return RequestDemand(
        caller=caller(tenant),
        model=model,
        price=FREE,
        prompt_tokens=prompt,
        output_tokens=output,
        choices=choices,
    )


def admission(
    quotas: Quotas | None = None,
    *,
    max_requests: int = 1024,
    clock: Callable[[], float] | None = None,
    edges: Callable[[], int] = lambda: 1,
) -> Admission:
    return Admission(max_requests=max_requests, clock=clock or Clock(), quotas=quotas, edges=edges)


def enter(entrance: Admission, *args: object, **kwargs: object) -> Place:
    wanted = demand(*args, **kwargs)  # type: ignore[arg-type]
    entrance.arrive(wanted.caller.tenant)
    entrance.arrive(wanted.caller.tenant, wanted.model)
    return asyncio.run(entrance.enter(wanted))


def every(**allowance: float) -> Quotas:
    return Quotas(every_tenant=msgspec.convert(allowance, AccountAllowance))


def told(entrance: Admission, wanted: RequestDemand) -> dict[str, str]:
    headers: dict[str, str] = {}

    async def ask() -> None:
        with contextlib.suppress(SkerryError):
            entrance.arrive(wanted.caller.tenant, tell=headers.update)
            entrance.arrive(wanted.caller.tenant, wanted.model, headers.update)
            await entrance.enter(wanted, headers.update)

    asyncio.run(ask())
    return headers
