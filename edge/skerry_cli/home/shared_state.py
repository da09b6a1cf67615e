"""Opens what processes share: the registry, the queue, and the platform's state.

All are files of the home, unless SKERRY_REGISTRY or SKERRY_STATE names NATS servers. A topology's
`state` is written down in the home, so that every command of it goes by the same one.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from skerry.errors import Unavailable
from skerry_cli.home.errors import CannotStart, StateError
from skerry_cli.home.keys import given_files, link_files
from skerry_cli.home.state import Home, read_record, replace_private
from skerry_regions.drivers.jetstream.tables import BATCHES, MONEY, USAGE
from skerry_regions.drivers.sqlite_queue import SqliteQueue
from skerry_regions.drivers.sqlite_registry import SqliteRegistry
from skerry_regions.queue import Queue
from skerry_regions.registry import Registry, RegistryUnavailable
from skerry_regions.state_url import SQLITE, SYSTEM, StateURL
from skerry_regions.zones import GLOBAL

if TYPE_CHECKING:
    from nats.aio.client import Client

    from skerry_regions.drivers.jetstream.connection import JetStream
    from skerry_regions.drivers.jetstream.specs import StreamSpec
    from skerry_regions.drivers.jetstream.stream import KeyedStream

VARIABLE = "SKERRY_REGISTRY"
STATE_VARIABLE = "SKERRY_STATE"
NEEDS_NATS = "the state is on NATS servers: `pip install '.[nats]'` in Skerry's repository first"


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


def stream_of(state: JetStream, table: StreamSpec, zone: str) -> KeyedStream:
    """Return a table of a zone, as `state`'s servers have it."""
    from skerry_regions.drivers.jetstream.stream import KeyedStream  # which needs their client

    return KeyedStream(state, table, zone)


def open_queue(home: Home, state: JetStream | None) -> Queue:
    """Return the queue of the home, or of all edges of its zone on `state`'s servers: then on its
    event loop, for calls from other threads."""
    if state is None:
        return SqliteQueue(home.queue)
    from skerry_regions.drivers.jetstream.queue.nats_queue import NatsQueue

    return NatsQueue(stream_of(state, BATCHES, home.zone), asyncio.get_running_loop())


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


class StateMark(Struct, frozen=True, kw_only=True):
    """The place of a home's state, of which a copy was begun (`skerry state copy`)."""

    version: Literal[1] = 1
    home: str  # by which servers know it; random
    phase: Literal["here", "leaving", "left", "returning"]
    servers: str = ""  # that it was copied to


def read_mark(home: Home) -> StateMark | None:
    """Return it; None of a home whose state was always where it is. Raises `StateError`."""
    return read_record(home.state_mark, StateMark)


@contextlib.contextmanager
def using_state(home: Home, *, alone: bool = False) -> Generator[None]:
    """Use the stores of a home, beside other processes or `alone`. Raises `CannotStart`."""
    try:
        home.run.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(home.state_lock, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if alone:
            raise CannotStart(f"cannot lock {home.state_lock}: {error.strerror}") from None
        yield  # an edge starts on a full disk, too, where nothing can be copied
        return
    try:
        kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CannotStart(
                "edges or commands of this home are running: end them (`skerry down`) first"
                if alone
                else "the state of this home is being copied: wait for `skerry state copy`"
            ) from None
        yield
    finally:
        os.close(descriptor)


def check_place(home: Home, url: StateURL | None) -> None:
    """Raise `CannotStart` where the state of this home is elsewhere, or on its way."""
    mark = read_mark(home)
    if mark is None or mark.phase == "here":
        return
    if mark.phase == "leaving":
        raise CannotStart(
            f"the state of this home is on its way to {mark.servers}: run `skerry state copy "
            "--from sqlite --to` with that URL once more, until it says that all is there"
        )
    if mark.phase == "returning":
        raise CannotStart(
            f"the state of this home is on its way back from {mark.servers}: run `skerry state "
            "copy --to sqlite --from` with that URL once more, until it says that all is there"
        )
    if url is None:
        raise CannotStart(
            f"the state of this home was copied to {mark.servers}: have that URL as `state` of the "
            f"topology, or in {STATE_VARIABLE}; or copy it back with `skerry state copy --to sqlite"
            " --from` that URL"
        )


@contextlib.asynccontextmanager
async def opened_state(
    home: Home, environ: Mapping[str, str], name: str, *, of_control: bool = False
) -> AsyncGenerator[JetStream | None]:
    """Yield the connection to the chosen servers, with all streams of the home's zone, or those
    `of_control` planes; None where the home has the state. `name` is what the servers list it as.
    Raises `CannotStart`."""
    url = chosen_state(home, environ)
    with using_state(home):
        check_place(home, url)
        if url is None:
            yield None
            return
        async with connected_state(
            home, environ, url, name, [home.zone], of_control=of_control
        ) as jetstream:
            if not of_control:
                await _check_seal(jetstream)
            yield jetstream


@contextlib.asynccontextmanager
async def connected_state(
    home: Home,
    environ: Mapping[str, str],
    url: StateURL,
    name: str,
    zones: Iterable[str],
    *,
    of_control: bool = False,
) -> AsyncGenerator[JetStream]:
    """Yield a connection to servers, with all streams of some zones, or those `of_control` planes.
    Raises `CannotStart`."""
    try:
        from skerry_regions.drivers.jetstream.answers import StateUnfit
        from skerry_regions.drivers.jetstream.connection import JetStream
        from skerry_regions.drivers.jetstream.tables import OF_CONTROL, declared
    except ImportError:
        raise CannotStart(NEEDS_NATS) from None
    try:
        jetstream = JetStream(
            url, name=name, make_client=nats_clients(home, environ, url, STATE_VARIABLE)
        )
        used = dict.fromkeys(each for zone in zones for each in declared(zone))
        await jetstream.open(*(OF_CONTROL if of_control else used))
    except StateUnfit as error:
        raise CannotStart(f"state {url}: {error}") from None
    except StateError as error:
        raise CannotStart(str(error)) from None
    try:
        yield jetstream
    finally:
        await jetstream.close()


async def _check_seal(jetstream: JetStream) -> None:
    """Raise `CannotStart` where a home goes on with what these servers have. Of servers that are
    away that is found out later, before anything is spent."""
    from skerry_edge.money.seal import sealed_by

    with contextlib.suppress(Unavailable):
        if home := await sealed_by(stream_of(jetstream, MONEY, GLOBAL)):
            raise CannotStart(
                f"the state of these servers was copied back into a home ({home}), which goes on "
                "with it: have `state: sqlite` there, or copy it here once more with `skerry state "
                "copy`"
            )


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

    usage = NatsUsage(journal, stream_of(state, USAGE, home.zone), edge=edge)
    usage.start()
    try:
        yield
    finally:
        await usage.close()
