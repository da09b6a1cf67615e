"""Streams as they are declared: every one bounded, and of one zone, which its name ends in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

NANOSECONDS = 1_000_000_000
DUPLICATE_SECONDS = 120.0  # for which the servers know a write that they get once more
MIB, GIB = 1 << 20, 1 << 30
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSpec:
    """One table of messages by key: stream `skerry-TABLE-ZONE`, subjects `…-ZONE.KEY`."""

    table: str
    max_bytes: int
    max_message_bytes: int
    storage: Literal["file", "memory"] = "file"
    keeps: int = 1  # messages of each key; 0: all
    max_messages: int = -1
    max_age_seconds: float = 0.0  # 0: for ever
    discard: Literal["old", "new"] = "new"  # what is lost when it is full
    is_durable: bool = False
    """What is acknowledged has to survive a power cut: servers have to sync each write."""
    is_immutable: bool = False
    """A key's value never changes, so that any replica may be read."""
    is_atomic: bool = False  # several keys may be written together
    has_ttl: bool = False  # messages may have a time of their own
    is_log: bool = False  # its messages stay until they are the oldest of too many
    replicas: int | None = None  # None: as many as the state's URL says

    def name(self, zone: str) -> str:
        """Return the name of its stream."""
        return f"skerry-{self.table}-{zone}"

    def config(self, zone: str, replicas: int) -> dict[str, Any]:
        """Return what the servers are sent to make it."""
        name = self.name(zone)
        return {
            "name": name,
            "subjects": [f"{name}.>"],
            "retention": "limits",
            "storage": self.storage,
            "num_replicas": self.replicas or replicas,
            "max_bytes": self.max_bytes,
            "max_msg_size": self.max_message_bytes,
            "max_msgs": self.max_messages,
            "max_msgs_per_subject": self.keeps or -1,
            "max_age": int(self.max_age_seconds * NANOSECONDS),
            "max_consumers": -1,
            "discard": self.discard,
            "duplicate_window": int(self._duplicate_seconds * NANOSECONDS),
            "allow_direct": self.is_immutable,
            "allow_atomic": self.is_atomic,
            "allow_msg_ttl": self.has_ttl,
            "deny_delete": self.is_log,
            "deny_purge": self.is_log,
        }

    @property
    def _duplicate_seconds(self) -> float:
        """Return no more than messages are kept: the servers refuse that."""
        return min(DUPLICATE_SECONDS, self.max_age_seconds or DUPLICATE_SECONDS)


def differs(config: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Return whether a stream is another than is declared. What is off may be left out."""
    return any(value != found.get(name, type(value)()) for name, value in config.items())


def key_of(*parts: str) -> str:
    """Return a key of these parts, each a token of its subject: in hex unless it is plain."""
    return ".".join(part if _PLAIN.fullmatch(part) else f"={part.encode().hex()}" for part in parts)


def parts_of(key: str) -> tuple[str, ...]:
    """Return what a key was made of."""
    return tuple(
        bytes.fromhex(part[1:]).decode() if part.startswith("=") else part
        for part in key.split(".")
    )
