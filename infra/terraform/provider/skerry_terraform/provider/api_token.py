"""`skerry_api_token`: a bearer token, kept in the state or, ephemeral, for one run only."""

from __future__ import annotations

from skerry_terraform.kit.diagnostics import ProviderError
from skerry_terraform.kit.planning import Object
from skerry_terraform.kit.provider import Ephemeral, Opened
from skerry_terraform.kit.schema import Attr, Schema, each, one_of
from skerry_terraform.kit.values import NUMBER, STRING, UNKNOWN, MapOf, SetOf, Value
from skerry_terraform.provider.client import ControlPlane, Unreachable
from skerry_terraform.provider.refusals import RequestRefused, explained
from skerry_terraform.provider.resource import ControlResource, Ctx, common

ROLES = ("viewer", "developer", "operator")
SCOPES = ("run", "read", "steer", "metrics", "admin")  # `admin`: until version 0.3, as a role
_check_scopes = each(one_of(*SCOPES), least=1)


def _bounds(*, replace: bool) -> dict[str, Attr]:
    """Return the attributes that say what a token may not."""
    return {
        "models": Attr(
            SetOf(STRING), optional=True, replace=replace,
            doc="Ids or aliases that it may run, or beginnings with `*` behind; all if not given.",
        ),
        "residency": Attr(optional=True, replace=replace, doc="Zone that requests stay in."),
        "per_day": Attr(NUMBER, optional=True, doc="US$ of a UTC day."),
        "per_month": Attr(NUMBER, optional=True, doc="US$ of a UTC month."),
        "expires_at": Attr(
            optional=True, replace=replace, doc="When it stops working: 2027-01-31T00:00:00Z."
        ),
    }  # fmt: skip


class ApiTokenResource(ControlResource):
    """Its caps can be changed; everything else forces another one."""

    name = "api_token"
    collection = "api_tokens"
    is_checked = False  # who makes tokens need not read the platform
    local = frozenset({"rotate_when_changed"})
    schema = Schema(
        doc="A bearer token of the platform. Its secret is in the state: prefer the ephemeral one.",
        attributes=common(
            name=Attr(required=True, replace=True, doc="What it is for."),
            role=Attr(
                optional=True,
                computed=True,
                keep=True,
                replace=True,
                check=one_of(*ROLES),
                doc="At the control plane: viewer, developer or operator; none if not given.",
            ),
            scopes=Attr(
                SetOf(STRING),
                optional=True,
                computed=True,
                keep=True,
                replace=True,
                check=_check_scopes,
                doc="At edges: of run, read, steer, metrics; those of its role if not given.",
            ),
            account_id=Attr(
                optional=True,
                computed=True,
                keep=True,
                replace=True,
                doc="That of the provider's token if not given.",
            ),
            **_bounds(replace=True),
            parent=Attr(computed=True, keep=True, doc="The token that it was made with."),
            rotate_when_changed=Attr(
                MapOf(STRING), optional=True, replace=True, doc="Any change makes a new token."
            ),
            secret=Attr(
                computed=True,
                keep=True,
                sensitive=True,
                doc="The token itself; null when it was imported.",
            ),
        ),
    )

    def id_of(self, values: Object) -> Value:
        return UNKNOWN  # it is drawn

    def body(self, values: Object) -> Object:
        return {name: each for name, each in super().body(values).items() if each is not UNKNOWN}


class EphemeralApiToken(Ephemeral[ControlPlane]):
    """Revoked when Terraform is done with it."""

    name = ApiTokenResource.name
    schema = Schema(
        doc="A token for the length of one run; it is in no state and no plan.",
        attributes={
            "id": Attr(computed=True),
            "name": Attr(required=True, doc="What it is for."),
            "role": Attr(optional=True, check=one_of(*ROLES), doc="At the control plane."),
            "scopes": Attr(SetOf(STRING), optional=True, check=_check_scopes, doc="Or run, read."),
            **_bounds(replace=False),
            "account_id": Attr(optional=True, doc="The platform's own if not given."),
            "secret": Attr(computed=True, sensitive=True, doc="The token itself."),
        },
    )

    def open(self, ctx: Ctx) -> Opened:
        body = {name: value for name, value in ctx.config.items() if value is not None}
        with explained(self.name, self.schema.attributes):
            made = ctx.client.create(ApiTokenResource.collection, body)
            ctx.client.acknowledge(ctx.client.key_of(ApiTokenResource.collection, made["id"]))
        result = ctx.config | {"id": made["id"], "secret": made["secret"]}
        return Opened(result=result, private={"id": made["id"]})

    def close(self, ctx: Ctx) -> None:
        id = ctx.private["id"]
        try:
            ctx.client.delete(ApiTokenResource.collection, id)
        except (RequestRefused, Unreachable) as error:
            raise ProviderError(
                f"The API token {id!r} was not revoked",
                f"It stays valid until it is deleted. {error}",
            ) from None
