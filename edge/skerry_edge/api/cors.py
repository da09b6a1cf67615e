"""Which web pages may call the edge from a browser: none, unless the operator names their origins.

A page that may call still needs a token; give browsers one with the scope `run` alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from skerry_edge.api.fields import HEADER as IGNORED_HEADER
from skerry_edge.api.fields import UNENFORCED_HEADER
from skerry_edge.gate.allowance_use import RATE_HEADERS
from skerry_edge.hints import EXPLAIN_HEADER
from skerry_edge.ledger.idempotency import REPLAYED_HEADER
from skerry_edge.ledger.response_cache import STATUS_HEADER

VARIABLE = "SKERRY_CORS_ORIGINS"
ANY = "*"
PREFLIGHT_SECONDS = 600  # a browser may remember the permission so long
EXPOSED = (
    "cf-ai-req-id",
    "x-request-id",
    "retry-after",
    "x-should-retry",
    STATUS_HEADER,
    REPLAYED_HEADER,
    EXPLAIN_HEADER,
    IGNORED_HEADER,
    UNENFORCED_HEADER,
    *RATE_HEADERS,
)

_ORIGIN = re.compile(r"https?://(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(?::[0-9]{1,5})?")


def origins_from(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the origins listed in SKERRY_CORS_ORIGINS, separated by commas; `*` is every page.

    Raises ValueError for what is not an origin.
    """
    origins = tuple(filter(None, map(str.strip, environ.get(VARIABLE, "").split(","))))
    for origin in origins:
        if origin != ANY and not _ORIGIN.fullmatch(origin):
            raise ValueError(
                f"{VARIABLE}: {origin!r} is not an origin such as https://app.example.com"
            )
    return origins


def middleware(origins: Sequence[str]) -> list[Middleware]:
    """Return what answers preflights and marks answers, or nothing when no page may call."""
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=list(EXPOSED),
            max_age=PREFLIGHT_SECONDS,
        )
    ]
