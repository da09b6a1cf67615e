"""Options of a gateway: what it may answer from its cache, and what it notes of a call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from skerry.errors import InvalidInput

MAX_VALUE = 4096  # characters of one header
MetadataValue = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """Sent with each call as `cf-aig-…` headers; None leaves a choice to the platform."""

    id: str | None = None
    skip_cache: bool | None = None
    cache_ttl: int | None = None  # seconds that an answer may be kept
    cache_key: str | None = None  # in place of the whole request
    metadata: Mapping[str, MetadataValue] | None = None
    collect_log: bool | None = None
    event_id: str | None = None
    request_timeout: float | None = None  # seconds

    def headers(self) -> dict[str, str]:
        """Raises `InvalidInput` for a value that no header can carry."""
        given: dict[str, MetadataValue] = {
            "gateway-id": self.id,
            "skip-cache": self.skip_cache,
            "cache-ttl": self.cache_ttl,
            "cache-key": self.cache_key,
            "metadata": None if self.metadata is None else _json(self.metadata),
            "collect-log": self.collect_log,
            "event-id": self.event_id,
            "request-timeout": None
            if self.request_timeout is None
            else round(self.request_timeout * 1000),
        }
        return {
            f"cf-aig-{name}": _header(name, value)
            for name, value in given.items()
            if value is not None
        }


def _json(metadata: Mapping[str, MetadataValue]) -> str:
    try:
        return json.dumps(dict(metadata), allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as exc:
        raise InvalidInput(f"gateway: metadata cannot be written as JSON: {exc}") from exc


def _header(name: str, value: MetadataValue) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if not (text.isascii() and text.isprintable()) or text != text.strip():
        raise InvalidInput(f"gateway: {name} must be printable ASCII", param=name)
    if len(text) > MAX_VALUE:
        raise InvalidInput(f"gateway: {name} is longer than {MAX_VALUE} characters", param=name)
    return text
