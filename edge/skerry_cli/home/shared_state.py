"""Where a process finds what others share: the registry, the queue, and the platform's state.

All are files of the home, unless SKERRY_REGISTRY or SKERRY_STATE names NATS servers. A topology's
`state` is written down in the home, so that every command of it goes by the same one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from skerry_cli.home.errors import CannotStart, StateError
from skerry_cli.home.keys import given_files, link_files
from skerry_cli.home.state import Home, replace_private
from skerry_regions.drivers.sqlite_queue import SqliteQueue
from skerry_regions.drivers.sqlite_registry import SqliteRegistry
from skerry_regions.queue import Queue
from skerry_regions.registry import Registry, RegistryUnavailable
from skerry_regions.state_url import SQLITE, SYSTEM, StateURL

if TYPE_CHECKING:
    from nats.aio.client import Client

    from skerry_regions.drivers.jetstream.connection import JetStream

VARIABLE = "SKERRY_REGISTRY"
STATE_VARIABLE = "SKERRY_STATE"


def open_registry(home: Home, environ: Mapping[str, str]) -> Registry:
    """Raises RegistryUnavailable."""
    text = environ.get(VARIABLE, "")
    if not text:
        return SqliteRegistry(home.registry)
    if not text.startswith(("nats://", "tls://")):
        raise RegistryUnavailable(f"{VARIABLE} is neither nats://host:port nor tls://host:port")
    try:
        from skerry_regions.drivers.nats_registry import URL_OPTIONS, NatsRegistry
    except ImportError:
        raise RegistryUnavailable(
            f"{VARIABLE} names a NATS server: `pip install '.[nats]'` in Skerry's repository first"
        ) from None
    try:
        url = StateURL.parse(text, URL_OPTIONS)
        assert url is not None
        return NatsRegistry(text, make_client=nats_clients(home, environ, url, VARIABLE))
    except (ValueError, StateError) as error:
        raise RegistryUnavailable(f"{VARIABLE}: {error}") from None


def open_queue(home: Home, state: JetStream | None) -> Queue:
    """Return the queue of the home, or of all edges of its zone on `state`'s servers: then on its
    event loop, for calls from other threads."""
    if state is None:
        return SqliteQueue(home.queue)
    from skerry_regions.drivers.jetstream.queue.nats_queue import NatsQueue
    from skerry_regions.drivers.jetstream.stream import KeyedStream
    from skerry_regions.drivers.jetstream.tables import BATCHES

    return NatsQueue(KeyedStream(state, BATCHES, home.zone), asyncio.get_running_loop())


def chosen_state(home: Home, environ: Mapping[str, str]) -> StateURL | None:
    """Return the NATS servers that have the platform's state; None: the home has it.

    Raises `CannotStart`.
    """
    source, text = STATE_VARIABLE, environ.get(STATE_VARIABLE, "").strip()
    if not text:
        source = str(home.state_url)
        try:
            text = home.state_url.read_text().strip()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise CannotStart(f"cannot read {source}: {error}") from None
    try:
        return StateURL.parse(text)
    except ValueError as error:
        raise CannotStart(f"{source}: {error}") from None


def keep_state(home: Home, text: str | None) -> None:
    """Have every process of the home go by what a topology says of `state`, if it says anything.

    Raises `CannotStart`.
    """
    if text is not None and (text != SQLITE or home.state_url.exists()):
        replace_private(home.state_url, f"{text}\n".encode())


@contextlib.asynccontextmanager
async def opened_state(
    home: Home, environ: Mapping[str, str], name: str
) -> AsyncGenerator[JetStream | None]:
    """Yield the connection to the chosen servers, with all streams of the home's zone; None where
    the home has the state. `name` is what the servers list it as. Raises `CannotStart`."""
    url = chosen_state(home, environ)
    if url is None:
        yield None
        return
    try:
        from skerry_regions.drivers.jetstream.answers import StateUnfit
        from skerry_regions.drivers.jetstream.connection import JetStream
        from skerry_regions.drivers.jetstream.tables import declared
    except ImportError:
        raise CannotStart(
            "the state is on NATS servers: `pip install '.[nats]'` in Skerry's repository first"
        ) from None
    try:
        jetstream = JetStream(
            url, name=name, make_client=nats_clients(home, environ, url, STATE_VARIABLE)
        )
        await jetstream.open(*declared(home.zone))
    except StateUnfit as error:
        raise CannotStart(f"state {url}: {error}") from None
    except StateError as error:
        raise CannotStart(str(error)) from None
    try:
        yield jetstream
    finally:
        await jetstream.close()


def nats_clients(
    home: Home, environ: Mapping[str, str], url: StateURL, source: str
) -> Callable[[], Client]:
    """Return what makes clients of such servers: for tls:// encrypted ones, which go by this
    machine's certificates as they are when they connect. Raises `StateError`."""
    from nats.aio.client import Client

    from skerry_regions.drivers.nats_tls import EncryptedClient, NatsTLS

    if not url.is_encrypted:
        return Client
    files = None
    if url.certificates is None:
        files = link_files(home, environ)
    elif url.certificates != SYSTEM:
        files = given_files(url.certificates, source)
    tls = NatsTLS(files)
    return lambda: EncryptedClient(tls)


@contextlib.asynccontextmanager
async def shared_usage(
    home: Home, journal: Path, edge: str, state: JetStream | None
) -> AsyncGenerator[None]:
    """Have the rows of a journal in those of all edges of the home's zone, and theirs in it, while
    entered; of `state`'s servers, if there are any. `edge` is the id of this one."""
    if state is None:
        yield
        return
    from skerry_edge.shared.nats_usage import NatsUsage
    from skerry_regions.drivers.jetstream.stream import KeyedStream
    from skerry_regions.drivers.jetstream.tables import USAGE

    usage = NatsUsage(journal, KeyedStream(state, USAGE, home.zone), edge=edge)
    usage.start()
    try:
        yield
    finally:
        await usage.close()
