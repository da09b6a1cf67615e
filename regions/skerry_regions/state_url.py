"""The place of what a platform's machines share: files of each home, or NATS servers.

sqlite
nats://skerry:secret@10.0.0.2:4222,10.0.0.3:4222,10.0.0.4:4222?system=sys:secret
nats://127.0.0.1:4222?replicas=1&durability=relaxed
tls://nats-1.example.com,nats-2.example.com,nats-3.example.com?certificates=/etc/skerry/nats
"""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

SQLITE = "sqlite"
SCHEMES = ("nats", "tls")
SYSTEM = "system"
OPTIONS = ("replicas", "durability", "system", "certificates")
DEFAULT_PORT = 4222
REPLICAS = ("1", "3", "5")
MAX_CHARS = 4096
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9_.-]{1,253})(?::([0-9]{1,5}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateURL:
    """NATS servers of one cluster, and what is demanded of them."""

    servers: tuple[str, ...]  # "nats://10.0.0.2:4222"
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    replicas: int = 3  # of each stream
    is_relaxed: bool = False  # whether servers may acknowledge what a power cut then takes
    system: tuple[str, str] | None = field(default=None, repr=False)
    """User and password of the servers' system account, which reports their settings."""
    certificates: str | None = None
    """Of tls:// servers: a folder of an operator's own, or `system` for the system's authorities
    and no certificate; None: those of the machine's links."""

    @property
    def is_encrypted(self) -> bool:
        return self.servers[0].startswith("tls:")

    @classmethod
    def parse(cls, text: str, options: Container[str] = OPTIONS) -> StateURL | None:
        """Return what is written, with some of the options; None for `sqlite`. Raises ValueError,
        without the secrets."""
        if text == SQLITE:
            return None
        scheme, found, rest = text.partition("://")
        if not found or scheme not in SCHEMES or len(text) > MAX_CHARS:
            raise ValueError("state is `sqlite`, or nats://HOST:PORT,… (or tls://)")
        where, _, query = rest.partition("?")
        user_info, at, hosts = where.rpartition("@")
        user, colon, password = user_info.partition(":")
        chosen = _options(query, options)
        if chosen.get("certificates") and scheme != "tls":
            raise ValueError("state: certificates are those of tls://, not of nats://")
        return cls(
            servers=tuple(f"{scheme}://{_address(host)}" for host in hosts.split(",")),
            user=unquote(user) if colon else None,
            password=unquote(password) if colon else None,
            token=unquote(user) if at and not colon else None,
            **chosen,
        )

    def __str__(self) -> str:
        """Return the servers alone: there may be secrets in the rest."""
        return ",".join(self.servers)


def _address(host: str) -> str:
    match = _HOST.fullmatch(host)
    port = int(match[2] or DEFAULT_PORT) if match else 0
    if match is None or not 0 < port < 65_536:
        raise ValueError(f"state: {host!r} is no HOST or HOST:PORT")
    return f"{match[1]}:{port}"


def _options(query: str, known: Container[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        match name if name in known else None:
            case "replicas" if value in REPLICAS:
                options["replicas"] = int(value)
            case "durability" if value in ("synced", "relaxed"):
                options["is_relaxed"] = value == "relaxed"
            case "system" if ":" in value:
                user, _, password = value.partition(":")
                options["system"] = user, password
            case "certificates" if value == SYSTEM or value.startswith("/"):
                options["certificates"] = value
            case "replicas":
                raise ValueError(f"state: replicas is one of {', '.join(REPLICAS)}, not {value!r}")
            case "durability":
                raise ValueError(f"state: durability is synced or relaxed, not {value!r}")
            case "system":
                raise ValueError("state: system is USER:PASSWORD")
            case "certificates":
                raise ValueError(f"state: certificates are {SYSTEM} or /a/folder, not {value!r}")
            case _:
                raise ValueError(f"state: there is no option {name!r}")
    return options
