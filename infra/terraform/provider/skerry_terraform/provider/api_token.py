"""`skerry_api_token`: a bearer token, kept in the state or, ephemeral, for one run only."""

from __future__ import annotations

from skerry_terraform.kit.diagnostics import ProviderError
from skerry_terraform.kit.planning import Object
from skerry_terraform.kit.provider import Ephemeral, Opened
from skerry_terraform.kit.schema import Attr, Schema, each, one_of
from skerry_terraform.kit.values import STRING, UNKNOWN, MapOf, SetOf, Value
from skerry_terraform.provider.client import ControlPlane, Refused, Unreachable, error_of
from skerry_terraform.provider.resource import ControlResource, Ctx, common

SCOPES = ("run", "read", "admin")
DEFAULT_SCOPES = ["run", "read"]
_check_scopes = each(one_of(*SCOPES), least=1)


class ApiToken(ControlResource):
    """It cannot be changed: everything forces another one."""

    name = "api_token"
    collection = "api_tokens"
    local = frozenset({"rotate_when_changed"})
    schema = Schema(
        doc="A bearer token of the platform. Its secret is in the state: prefer the ephemeral one.",
        attributes=common(
            name=Attr(required=True, replace=True, doc="What it is for."),
            scopes=Attr(
                SetOf(STRING),
                default=DEFAULT_SCOPES,
                replace=True,
                check=_check_scopes,
                doc="Of run, read and admin.",
            ),
            account_id=Attr(optional=True, replace=True, doc="The platform's own if not given."),
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


class EphemeralApiToken(Ephemeral[ControlPlane]):
    """Revoked when Terraform is done with it."""

    name = ApiToken.name
    schema = Schema(
        doc="A token for the length of one run; it is in no state and no plan.",
        attributes={
            "id": Attr(computed=True),
            "name": Attr(required=True, doc="What it is for."),
            "scopes": Attr(SetOf(STRING), optional=True, check=_check_scopes, doc="Or run, read."),
            "account_id": Attr(optional=True, doc="The platform's own if not given."),
            "secret": Attr(computed=True, sensitive=True, doc="The token itself."),
        },
    )

    def open(self, ctx: Ctx) -> Opened:
        body = {name: value for name, value in ctx.config.items() if value is not None}
        body.setdefault("scopes", DEFAULT_SCOPES)
        try:
            made = ctx.client.create(ApiToken.collection, body)
        except Refused as refused:
            raise error_of(refused, self.name, self.schema.attributes) from None
        result = ctx.config | {"id": made["id"], "secret": made["secret"]}
        return Opened(result=result, private={"id": made["id"]})

    def close(self, ctx: Ctx) -> None:
        id = ctx.private["id"]
        try:
            ctx.client.delete(ApiToken.collection, id)
        except (Refused, Unreachable) as error:
            raise ProviderError(
                f"The API token {id!r} was not revoked",
                f"It stays valid until it is deleted. {error}",
            ) from None
