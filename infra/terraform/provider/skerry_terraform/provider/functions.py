"""`provider::skerry::…`: what can be said without the control plane."""

from __future__ import annotations

import re

from skerry_terraform.kit.provider import ArgumentError, Function
from skerry_terraform.kit.values import STRING
from skerry_terraform.provider.pool import pool_id

_ACCOUNT = re.compile(r"[0-9a-f]{32}")


def _endpoint_url(edge_url: str, account_id: str, model: str) -> str:
    if not edge_url.startswith(("http://", "https://")):
        raise ArgumentError(f"{edge_url!r} is not a URL of an edge", 0)
    if not _ACCOUNT.fullmatch(account_id):
        raise ArgumentError(f"{account_id!r} is not an account: 32 hex digits", 1)
    return f"{edge_url.rstrip('/')}/client/v4/accounts/{account_id}/ai/run/{model}"


FUNCTIONS = (
    Function(
        name="pool_id",
        parameters=(("region", STRING, "Its name."), ("name", STRING, "Of the pool.")),
        returns=STRING,
        call=pool_id,
        doc="The id of a pool.",
    ),
    Function(
        name="endpoint_url",
        parameters=(
            ("edge_url", STRING, "Such as skerry_edge_node.NAME.url."),
            ("account_id", STRING, "32 hex digits."),
            ("model", STRING, "Catalog id or alias."),
        ),
        returns=STRING,
        call=_endpoint_url,
        doc="Where a model is called.",
    ),
)
