"""`limits.yaml`: how much tenants may use, and how much models may be used. Unlimited unless set.

    every_tenant: {requests_per_minute: 300, tokens_per_minute: 200_000, concurrency: 16}
    tenants:                                    # in place of the above
      - {account: "89abcdef0123456789abcdef01234567", per_day: 5, per_month: 100}  # US$
      - {account: "0123456789abcdef0123456789abcdef", requests_per_minute: 3000}
    hold_seconds: 30                            # for a model of which no node is being started
    models:
      - model: "@cf/huggingfacetb/smollm2-135m-instruct"
        every_tenant: {requests_per_minute: 60} # of this model, beside the tenant's own limits
        all_tenants: {concurrency: 64}          # of this model, by everybody together

Mistakes are reported with file, line and key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from skerry.errors import ModelNotFound
from skerry_edge.money.caps import Budget, Caps
from skerry_regions.access import Dollars
from skerry_regions.models import located_yaml
from skerry_regions.models.catalog import Catalog

MAX_RATE = 1e12  # per minute
UNWRITTEN_SECONDS = 10.0
HOLD_SECONDS = 30.0

Rate = Annotated[float, Meta(gt=0, le=MAX_RATE)]


class Allowance(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much somebody may use. None: as much as they like."""

    requests_per_minute: Rate | None = None
    tokens_per_minute: Rate | None = None  # of prompts and outputs
    concurrency: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None  # requests at once

    @property
    def is_unlimited(self) -> bool:
        return (
            self.requests_per_minute is None
            and self.tokens_per_minute is None
            and self.concurrency is None
        )


class AccountAllowance(Allowance, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much an account may use, and what all its tokens together may spend."""

    per_day: Dollars | None = None  # UTC
    per_month: Dollars | None = None
    websockets: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """Open at once; None, here and below: as many as an edge's own limits say."""
    websocket_lanes: Annotated[int, Meta(ge=1, le=1024)] | None = None  # of one, with names

    @property
    def caps(self) -> Caps:
        return Caps(per_day=self.per_day, per_month=self.per_month)


UNLIMITED = Allowance()
NO_LIMITS = AccountAllowance()


class TenantAllowance(AccountAllowance, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one account may, in place of what every tenant may."""

    account: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$")]


class ModelAllowance(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much one model may be used: by each tenant, and by all of them together."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]  # catalog id or alias
    every_tenant: Allowance = UNLIMITED
    all_tenants: Allowance = UNLIMITED


class QuotaFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Content of `limits.yaml`."""

    every_tenant: AccountAllowance = NO_LIMITS
    tenants: Annotated[tuple[TenantAllowance, ...], Meta(max_length=50_000)] = ()
    models: Annotated[tuple[ModelAllowance, ...], Meta(max_length=10_000)] = ()
    unwritten_seconds: Annotated[float, Meta(ge=0, le=1e9)] = UNWRITTEN_SECONDS
    """For which whoever has a cap is served while the usage journal cannot be written."""
    hold_seconds: Annotated[float, Meta(ge=0, le=86_400)] = HOLD_SECONDS
    """That a request waits for a first node of its model while none is being started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """All limits of a platform, ready to be looked up."""

    every_tenant: AccountAllowance = NO_LIMITS
    tenants: dict[str, TenantAllowance] = field(default_factory=dict)  # by account id
    models: dict[str, ModelAllowance] = field(default_factory=dict)  # by catalog id
    unwritten_seconds: float = UNWRITTEN_SECONDS
    hold_seconds: float = HOLD_SECONDS

    @property
    def limits_anything(self) -> bool:
        """Return whether a request has to be looked up at all."""
        every = self.every_tenant
        is_free = every.is_unlimited and every.caps.is_unlimited
        return bool(self.tenants or self.models) or not is_free

    def account(self, tenant: str) -> AccountAllowance:
        """Return what an account may."""
        return self.tenants.get(tenant, self.every_tenant)

    def budget(self, tenant: str) -> Budget | None:
        """Return what all tokens of an account may spend together, if there is a limit."""
        caps = self.account(tenant).caps
        return None if caps.is_unlimited else Budget(tenant, caps, "account")

    def of(self, tenant: str, model: str) -> Iterator[tuple[tuple[str, str], Allowance]]:
        """Yield the limits that a request must keep to, each with the key of who shares it:
        (tenant, model), where "" stands for all of them."""
        yield (tenant, ""), self.account(tenant)
        if (of_model := self.models.get(model)) is not None:
            yield (tenant, model), of_model.every_tenant
            yield ("", model), of_model.all_tenants


def load_quotas(path: Path, catalog: Catalog) -> Quotas:
    """Read and check a file. No file: no limits. Raises `YamlError`."""
    document = located_yaml.load_if_there(path, QuotaFile)
    tenants: dict[str, TenantAllowance] = {}
    for i, tenant in enumerate(document.value.tenants):
        if tenant.account in tenants:
            raise document.error(f"tenants[{i}].account", f"{tenant.account} is there twice")
        tenants[tenant.account] = tenant
    models: dict[str, ModelAllowance] = {}
    for i, model in enumerate(document.value.models):
        try:
            id = catalog.resolve(model.model).id
        except ModelNotFound:  # its limits would hold for no tenant, unnoticed
            raise document.error(f"models[{i}].model", f"no model {model.model!r}") from None
        if id in models:
            raise document.error(f"models[{i}].model", f"{id} is there twice")
        models[id] = model
    return Quotas(
        every_tenant=document.value.every_tenant,
        tenants=tenants,
        models=models,
        unwritten_seconds=document.value.unwritten_seconds,
        hold_seconds=document.value.hold_seconds,
    )
