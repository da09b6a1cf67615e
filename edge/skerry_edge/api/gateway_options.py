"""AI Gateway's options, in a request's body or its headers, and what of them is only noted.

The options that change an answer are those of the `cf-aig-…` headers, which the response cache and
deadlines read. `metadata` and `eventId` go into the request's trace; a gateway's own retries and
its log are not there, and are named as ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from skerry.errors import InvalidInput
from skerry.wire import GatewayOptions
from skerry_edge.api.edge_request import EdgeRequest
from skerry_edge.ledger.response_cache import GATEWAY_HEADER, KEY_HEADER, SKIP_HEADER, TTL_HEADER
from skerry_edge.telemetry.tracing import Attributes

TIMEOUT_HEADER: Final = "cf-aig-request-timeout"
METADATA_HEADER: Final = "cf-aig-metadata"
EVENT_HEADER: Final = "cf-aig-event-id"
LOG_HEADER: Final = "cf-aig-collect-log"
PAYLOAD_HEADER: Final = "cf-aig-collect-log-payload"
IGNORED: Final = (
    "cf-aig-backoff",
    "cf-aig-byok-alias",
    "cf-aig-custom-cost",
    "cf-aig-max-attempts",
    "cf-aig-retry-delay",
    "cf-aig-zdr",
)
NOTED: Final = frozenset((METADATA_HEADER, EVENT_HEADER, LOG_HEADER, PAYLOAD_HEADER, *IGNORED))

MAX_METADATA: Final = 5  # upstream's
MAX_TEXT: Final = 256  # characters of a value in a trace

_metadata = msgspec.json.Decoder(dict[str, str | int | float | bool | None])


def apply_options(request: EdgeRequest, options: GatewayOptions) -> None:
    """Have the options count as their headers do, before these are read. Raises `InvalidInput`."""
    given = {
        GATEWAY_HEADER: options.id,
        SKIP_HEADER: options.skip_cache,
        TTL_HEADER: options.cache_ttl,
        KEY_HEADER: options.cache_key,
        TIMEOUT_HEADER: options.request_timeout_ms,
        EVENT_HEADER: options.event_id,
        LOG_HEADER: options.collect_log,
        METADATA_HEADER: options.metadata,
        "cf-aig-max-attempts": options.retries and options.retries.max_attempts,
        "cf-aig-retry-delay": options.retries and options.retries.retry_delay_ms,
        "cf-aig-backoff": options.retries and options.retries.backoff,
    }
    request.fields = {
        **request.fields,
        **{name: _text(value) for name, value in given.items() if value is not None},
    }


def apply_headers(request: EdgeRequest, given: Mapping[str, object]) -> None:
    """Have a step's own headers of the gateway count; its credentials are the request's."""
    own = {
        name.lower(): _text(value)
        for name, value in given.items()
        if name.lower().startswith(("cf-aig-", "cf-cache-", "cf-skip-"))
    }
    request.fields = {**request.fields, **own}


def note(request: EdgeRequest) -> None:
    """Write what is only noted into the request's trace, and name what is ignored in a header.

    Raises `InvalidInput` for metadata that is none.
    """
    fields = request.fields
    ignored = [name for name in IGNORED if name in fields]
    logged = (LOG_HEADER, PAYLOAD_HEADER)
    ignored += [name for name in logged if fields.get(name, "false").strip().lower() != "false"]
    request.ignore(ignored)
    attributes: Attributes = {}
    for name, value in _metadata_of(fields.get(METADATA_HEADER, "{}")).items():
        attributes[f"metadata.{name[:MAX_TEXT]}"] = str(value)[:MAX_TEXT]
    if EVENT_HEADER in fields:
        attributes["event_id"] = fields[EVENT_HEADER][:MAX_TEXT]
    if attributes:
        now = request.trace.now()
        request.trace.add("gateway", now, now, attributes)


def _metadata_of(text: str) -> Mapping[str, object]:
    try:
        found = _metadata.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = None
    if found is None or len(found) > MAX_METADATA:
        raise InvalidInput(
            f"Bad input: {METADATA_HEADER} must be a JSON object of up to {MAX_METADATA} strings, "
            "numbers and booleans",
            param=METADATA_HEADER,
        )
    return found


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return msgspec.json.encode(value).decode()
    return str(value)
