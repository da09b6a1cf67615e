"""Checks that NATS servers can keep a platform's state: their version, disks and settings.

JetStream acknowledges by default what a power cut then takes (`sync_interval: 2m`; Jepsen on
2.12.1, nats-server #7564), and its first versions of 2.12 lose streams. A server's settings are its
system account's to know.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence

from msgspec import Struct
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from skerry.errors import Unavailable
from skerry_regions.drivers.jetstream.specs import GIB, StreamSpec
from skerry_regions.drivers.nats_tls import nats_reason
from skerry_regions.process.pauses import until_set
from skerry_regions.state_url import StateURL

LEAST_VERSION = (2, 12, 3)
MOST_OF_THE_DISK = 0.7
GATHER_SECONDS = 1.0  # in which all servers of a cluster answer
CONNECT_SECONDS = 2


class ServerSettings(Struct, frozen=True, kw_only=True):
    """What one server says of itself."""

    name: str
    version: tuple[int, ...]
    is_synced: bool | None = None  # before it acknowledges; None: this account may not read it
    store_bytes: int | None = None
    cluster_size: int = 1  # servers with JetStream that it knows of


class ClusterSettings(Struct, frozen=True):
    """The servers that answered, and whether there may be more."""

    servers: tuple[ServerSettings, ...]
    is_clustered: bool


def unfit_settings(
    cluster: ClusterSettings, url: StateURL, declared: Sequence[tuple[StreamSpec, str]]
) -> list[str]:
    """Return a sentence for each thing that keeps these servers from keeping these streams."""
    problems = []
    for server in cluster.servers:
        if server.version < LEAST_VERSION:
            problems.append(
                f"The server {server.name} is nats-server {_dotted(server.version)}: at least "
                f"{_dotted(LEAST_VERSION)} is needed."
            )
    if url.replicas > 1 and not cluster.is_clustered:
        problems.append(
            f"The server is not part of a cluster, so streams cannot have {url.replicas} replicas: "
            "name a cluster, or write `?replicas=1`."
        )
    specs = [spec for spec, _ in declared]
    if not url.is_relaxed and any(spec.is_durable for spec in specs):
        problems += _unsynced(cluster, url)
    needed = sum(spec.max_bytes for spec in specs if spec.storage == "file")
    for server in cluster.servers:
        if server.store_bytes is not None and needed > MOST_OF_THE_DISK * server.store_bytes:
            problems.append(
                f"The server {server.name} may store {server.store_bytes / GIB:.1f} GiB, and the "
                f"streams may take {needed / GIB:.1f} GiB, which is to be at most "
                f"{MOST_OF_THE_DISK:.0%} of it: raise `max_file_store`."
            )
    return problems


def _unsynced(cluster: ClusterSettings, url: StateURL) -> list[str]:
    """Return what is wrong with servers that acknowledge money before it is on a disk."""
    relax = "or write `?durability=relaxed`, and what a power cut takes is spent twice."
    if url.system is None:
        return [
            "Whether the servers have `sync_interval: always` is known to their system account: "
            f"write `?system=USER:PASSWORD`, {relax}"
        ]
    loose = [server.name for server in cluster.servers if server.is_synced is False]
    if not loose:
        return []
    return [f"Set `sync_interval: always` in `jetstream {{}}` of {', '.join(loose)}, {relax}"]


async def read_settings(
    client: Client, url: StateURL, make_client: Callable[[], Client] = Client
) -> ClusterSettings:
    """Return what is known of the servers that `client` is connected to: of this one its version,
    of all of them the rest where the URL names a user of the system account, which another client
    is made for.

    Raises `Unavailable`.
    """
    info = client._server_info  # of the greeting; there is no other way to it
    is_clustered = bool(info.get("cluster"))
    if url.system is None:
        here = ServerSettings(
            name=str(info.get("server_name", "")), version=version_of(str(info.get("version", "")))
        )
        return ClusterSettings((here,), is_clustered)
    return ClusterSettings(await _ask_all(url, make_client(), *url.system), is_clustered)


async def _ask_all(
    url: StateURL, client: Client, user: str, password: str
) -> tuple[ServerSettings, ...]:
    found, is_whole = dict[str, ServerSettings](), asyncio.Event()

    async def take(message: Msg) -> None:
        server = read_server(message.data)
        found[server.name] = server
        if len(found) >= max(each.cluster_size for each in found.values()):
            is_whole.set()

    async def ignore(error: Exception) -> None:
        """Ignore it: the call that fails says it."""

    try:
        await client.connect(
            [*url.servers],
            user=user,
            password=password,
            allow_reconnect=False,
            connect_timeout=CONNECT_SECONDS,
            error_cb=ignore,
        )
        inbox = client.new_inbox()
        await client.subscribe(inbox, cb=take)
        await client.publish("$SYS.REQ.SERVER.PING.JSZ", b'{"config":true}', reply=inbox)
        await until_set(is_whole, GATHER_SECONDS)  # some may be away
    except (NatsError, OSError, TimeoutError) as error:
        raise Unavailable(f"the system account of NATS: {nats_reason(error)}") from error
    finally:
        await client.close()
    if not found:
        raise Unavailable("NATS does not answer its system account: is this one, with JetStream?")
    return tuple(found[name] for name in sorted(found))


def read_server(data: bytes) -> ServerSettings:
    """Read one server's answer to `$SYS.REQ.SERVER.PING.JSZ`. Raises `Unavailable`."""
    try:
        answer = json.loads(data)
        server, config = answer["server"], answer["data"].get("config") or {}
        return ServerSettings(
            name=server["name"],
            version=version_of(server["ver"]),
            is_synced=bool(config.get("sync_always")) if config else None,
            store_bytes=config.get("max_storage"),
            cluster_size=(answer["data"].get("meta_cluster") or {}).get("cluster_size", 1),
        )
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise Unavailable(f"NATS describes a server as nobody can read: {error!r}") from None


def version_of(text: str) -> tuple[int, ...]:
    """Return (2, 12, 3) of `2.12.3-RC.1`; (0,) of what is no version."""
    numbers = text.partition("-")[0].split(".")
    return tuple(int(number) for number in numbers) if all(n.isdigit() for n in numbers) else (0,)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
