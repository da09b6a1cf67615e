"""A connection to the NATS servers of one cluster: made, checked, and made again for ever.

    connect ──▶ are the servers fit? ──▶ make or change the streams ──▶ usable ──▶ ended ──▶ connect

A request while it is not usable is refused at once with `Unavailable`. Where servers are
reached and are not fit, `open` raises `StateUnfit`; what is found later is logged, and looked at
again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from skerry.errors import Unavailable
from skerry_regions.drivers.jetstream.answers import ErrorCode, JetStreamError, StateUnfit, answered
from skerry_regions.drivers.jetstream.server_settings import read_settings, unfit_settings
from skerry_regions.drivers.jetstream.specs import StreamSpec, differs
from skerry_regions.drivers.nats_tls import nats_reason, refusal
from skerry_regions.process.cancellation import cancel_tasks
from skerry_regions.state_url import StateURL

OPEN_SECONDS = 5.0  # that a start waits for servers
REQUEST_SECONDS = 1.0  # for one answer
CALL_SECONDS = 5.0  # for one of the API, such as making a stream
CONNECT_SECONDS = 2
PAUSE_SECONDS = 0.1  # between two attempts to connect
PREPARE_SECONDS = 0.2  # between two to make streams
UNFIT_SECONDS = 10.0  # until unfit servers are looked at again
CLOSE_SECONDS = 1.0

Declared = tuple[StreamSpec, str]  # and its zone

logger = logging.getLogger(__name__)


class JetStream:
    """The connection of one process. Lives on one event loop."""

    def __init__(
        self, url: StateURL, *, name: str = "skerry", make_client: Callable[[], Client] = Client
    ) -> None:
        """`name` is what the servers list it as. Clients of servers of tls:// are encrypted ones:
        see `nats_tls`."""
        self._url = url
        self._name = name
        self._make_client = make_client
        self._client = make_client()
        self._problem = "not connected yet"
        self._refused = ""  # why no TLS came about with the server that was called last
        self._declared: tuple[Declared, ...] = ()
        self._keeping: asyncio.Task[None] | None = None

    @property
    def problem(self) -> str:
        """Return why it cannot be used now; "" when it can."""
        if self._problem or self._client.is_connected:
            return self._problem
        return "the connection is lost"

    async def open(self, *declared: Declared) -> None:
        """Connect, and have these streams. Servers that are away are waited for in the background.

        Raises `StateUnfit`.
        """
        self._declared = declared
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._keeping = asyncio.create_task(self._keep(first), name="jetstream")
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await first
        except TimeoutError:
            if self._refused:
                await self.close()
                raise StateUnfit(f"{self._refused}.") from None
            logger.warning("state %s: %s; it is tried again", self._url, self.problem)
        except StateUnfit:
            await self.close()
            raise

    async def close(self) -> None:
        """End it. Idempotent."""
        self._problem = "it is closed"
        await cancel_tasks(self._keeping)
        with contextlib.suppress(NatsError, OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):  # the server may read no more
                await self._client.close()

    async def request(
        self,
        subject: str,
        data: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        seconds: float = REQUEST_SECONDS,
    ) -> Msg:
        """Send a request, and return the answer. Raises `Unavailable`: the request may be carried
        out all the same."""
        self._check()
        return await self._send(subject, data, headers, seconds)

    async def call(
        self, api: str, body: object = None, *, seconds: float = CALL_SECONDS
    ) -> dict[str, Any]:
        """Call JetStream's API, `STREAM.INFO.name` for instance. Raises `JetStreamError` or
        `Unavailable`."""
        self._check()
        return await self._call(api, body, seconds)

    async def subscribe(
        self, on_message: Callable[[Msg], None]
    ) -> tuple[str, Callable[[], Awaitable[None]]]:
        """Return a new subject, whose messages `on_message` is called with, and what ends that.

        A message of which it raises is logged. Raises `Unavailable`.
        """
        self._check()
        inbox = self._client.new_inbox()

        async def receive(message: Msg) -> None:
            on_message(message)

        try:
            subscription = await self._client.subscribe(inbox, cb=receive)
        except (NatsError, OSError) as error:
            raise _away(error) from error

        async def end() -> None:
            with contextlib.suppress(NatsError, OSError):
                await subscription.unsubscribe()

        return inbox, end

    def _check(self) -> None:
        if problem := self.problem:
            raise Unavailable(f"NATS cannot be used now: {problem}.")

    async def _call(
        self, api: str, body: object = None, seconds: float = CALL_SECONDS
    ) -> dict[str, Any]:
        data = b"" if body is None else json.dumps(body).encode()
        return answered(await self._send(f"$JS.API.{api}", data, None, seconds))

    async def _send(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None, seconds: float
    ) -> Msg:
        task = asyncio.current_task()
        cancellations = 0 if task is None else task.cancelling()
        try:
            answer = await self._client.request(
                subject, data, timeout=seconds, headers=dict(headers) if headers else None
            )
        except (NatsError, OSError, TimeoutError) as error:
            raise _away(error) from error
        if task is not None and task.cancelling() > cancellations:
            raise asyncio.CancelledError  # Python 3.11's `wait_for` loses one that comes with it
        return answer

    # --- making it --------------------------------------------------------------------------------

    async def _keep(self, first: asyncio.Future[None]) -> None:
        """Keep a connection for ever. `first` gets the first outcome, if anything waits for it."""
        while True:
            changed = asyncio.Event()
            await self._connect(changed)
            while not self._client.is_closed:
                changed.clear()
                try:
                    if not await self._prepare():
                        break
                except StateUnfit as error:
                    self._problem = str(error)
                    if not first.done():
                        return first.set_exception(error)
                    logger.error("state %s: %s", self._url, error)
                    await asyncio.sleep(UNFIT_SECONDS)
                else:
                    self._problem = ""
                    if not first.done():
                        first.set_result(None)
                    await changed.wait()
            self._problem = f"the servers ended the connection: {self._client.last_error}"
            logger.error("state %s: %s", self._url, self._problem)
            await asyncio.sleep(PAUSE_SECONDS)
            self._client = self._make_client()

    async def _connect(self, changed: asyncio.Event) -> None:
        """Return when a server is reached. A connection that is lost is made again by the client;
        `changed` is set when it is, and when the client gives up: servers may have lost streams."""
        client = self._client

        async def failed(error: Exception) -> None:
            """Keep what is wrong, and pause: the client does not."""
            if not client.is_connected:
                self._refused = refusal(error, self._refused)
                self._problem = self._problem and (self._refused or nats_reason(error))
                await asyncio.sleep(PAUSE_SECONDS)

        async def note() -> None:
            changed.set()

        await client.connect(
            [*self._url.servers],
            name=self._name,
            user=self._url.user,
            password=self._url.password,
            token=self._url.token,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0,
            connect_timeout=CONNECT_SECONDS,
            ping_interval=2,
            max_outstanding_pings=2,
            error_cb=failed,
            closed_cb=note,
            reconnected_cb=note,
        )

    async def _prepare(self) -> bool:
        """Check the servers, then have all streams, however often that takes; False when the client
        has ended. Raises `StateUnfit`."""
        while not self._client.is_closed:
            try:
                settings = await read_settings(self._client, self._url, self._make_client)
                if problems := unfit_settings(settings, self._url, self._declared):
                    raise StateUnfit(" ".join(problems))
                for spec, zone in self._declared:
                    await self._have(spec.config(zone, self._url.replicas))
                return True
            except (Unavailable, JetStreamError) as error:
                self._problem = self._problem and str(error)
                await asyncio.sleep(PREPARE_SECONDS)
        return False

    async def _have(self, config: Mapping[str, Any]) -> None:
        """Make a stream, or change it into what is declared."""
        name = config["name"]
        try:
            try:
                found = (await self._call(f"STREAM.INFO.{name}"))["config"]
            except JetStreamError as error:
                if error.code != ErrorCode.NO_STREAM:
                    raise
                await self._call(f"STREAM.CREATE.{name}", config)
            else:
                if differs(config, found):
                    await self._call(f"STREAM.UPDATE.{name}", found | config)
        except JetStreamError as error:
            if error.is_passing:
                raise
            raise StateUnfit(f"The stream {name} cannot be had: {error}.") from error


def _away(error: Exception) -> Unavailable:
    return Unavailable(f"NATS does not answer: {nats_reason(error)}.")
