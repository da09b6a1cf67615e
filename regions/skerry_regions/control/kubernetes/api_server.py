"""Kubernetes' API server: objects by path, over HTTPS with a service account's token.

Every call has ten seconds and an answer of at most 16 MiB. The token's file is read for each call:
the kubelet replaces it long before it ends. What a call meets is `ApiError`, retried by whoever
looks again: all calls here are idempotent, or guarded by `resourceVersion`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

if TYPE_CHECKING:
    import aiohttp

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # of the pod that we may be in
SECONDS = 10.0
MAX_BYTES = 16 << 20
MAX_TOKEN_BYTES = 64 << 10
MAX_MESSAGE = 500
MAX_WAIT = 60.0  # seconds, of what a server wants us to wait
PAGE = 250  # objects of one answer
MAX_PAGES = 40
LISTS = 3  # times that a list is begun again, when its pages have expired

Object = dict[str, Any]


class AccessError(Exception):
    """The API server cannot be called as it is configured; the message says why."""


class ApiError(Exception):
    """A call failed. `status` is HTTP's; 0: there was no answer."""

    def __init__(self, status: int, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAccess:
    """URL and credentials of the API server."""

    server: str  # https://HOST:PORT
    namespace: str
    token_file: Path
    ca_file: Path

    @classmethod
    def of_pod(cls, environ: Mapping[str, str], account: Path = ACCOUNT) -> ClusterAccess:
        """Return that of the pod that we run in. Raises AccessError."""
        host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
        if not host or not port:
            raise AccessError("this is no pod: KUBERNETES_SERVICE_HOST is not set; give a URL")
        try:
            namespace = (account / "namespace").read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise AccessError(f"the pod has no service account: {error}") from None
        return cls(
            server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
            namespace=namespace,
            token_file=account / "token",
            ca_file=account / "ca.crt",
        )

    def path(self, collection: str, name: str = "") -> str:
        """Return the path of a namespaced collection, such as `apps/v1/statefulsets`, or of one
        object in it."""
        group, _, kind = collection.rpartition("/")
        base = f"/api/{group}" if group == "v1" else f"/apis/{group}"
        return f"{base}/namespaces/{self.namespace}/{kind}" + (f"/{name}" if name else "")


class ApiServer:
    """Lives on one event loop, within `async with`."""

    def __init__(self, access: ClusterAccess) -> None:
        """Raises AccessError."""
        self.access = access
        if urlsplit(access.server).scheme != "https":
            raise AccessError(f"{access.server}: a token goes over https:// alone")
        try:
            self._tls = ssl.create_default_context(cafile=str(access.ca_file))
        except (OSError, ssl.SSLError) as error:
            raise AccessError(f"{access.ca_file}: {error}") from None
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> ApiServer:
        import aiohttp  # 0.1 s of a start that may never call it

        timeout = aiohttp.ClientTimeout(total=SECONDS)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls, limit=8), timeout=timeout
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, collection: str, name: str) -> Object | None:
        """Return an object; None where there is none. Raises ApiError."""
        try:
            return await self._call("GET", self.access.path(collection, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def all_of(self, collection: str, labels: str) -> list[Object]:
        """Return all objects with these labels. Raises ApiError."""
        for _ in range(LISTS):
            try:
                return await self._pages(collection, labels)
            except ApiError as error:
                if error.status != 410:  # else its next page is of a state that is gone
                    raise
        raise ApiError(410, f"the list of {collection} expires before it is read")

    async def create(self, collection: str, made: Object) -> Object:
        """Create an object. Raises ApiError: 409 where there is one of its name."""
        return await self._call("POST", self.access.path(collection), made)

    async def replace(self, collection: str, changed: Object) -> Object:
        """Replace an object. Raises ApiError: 409 where its `resourceVersion` is over."""
        name = changed["metadata"]["name"]
        return await self._call("PUT", self.access.path(collection, name), changed)

    async def delete(
        self, collection: str, name: str, *, uid: str, seconds: int | None = None
    ) -> None:
        """Delete the object of this uid, a pod with `seconds` of grace; one that is gone is that
        already. Raises ApiError."""
        options: Object = {"preconditions": {"uid": uid}}
        if seconds is not None:
            options["gracePeriodSeconds"] = seconds
        try:
            await self._call("DELETE", self.access.path(collection, name), options)
        except ApiError as error:
            if error.status not in (404, 409):  # 409: another has its name by now
                raise

    async def _pages(self, collection: str, labels: str) -> list[Object]:
        found, more = list[Object](), ""
        for _ in range(MAX_PAGES):
            query = {"labelSelector": labels, "limit": str(PAGE)} | (
                {"continue": more} if more else {}
            )
            page = await self._call("GET", self.access.path(collection), query=query)
            found += page.get("items") or []
            more = (page.get("metadata") or {}).get("continue") or ""
            if not more:
                return found
        raise ApiError(0, f"there are more than {MAX_PAGES * PAGE} {collection}")

    async def _call(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Object:
        import aiohttp

        assert self._session is not None
        headers = {"authorization": f"Bearer {await asyncio.to_thread(self._token)}"}
        data = None
        if body is not None:
            data, headers["content-type"] = msgspec.json.encode(body), "application/json"
        try:
            async with self._session.request(
                method, f"{self.access.server.rstrip('/')}{path}", params=query, data=data,
                headers=headers, allow_redirects=False,
            ) as reply:  # fmt: skip
                content = await _bounded(reply.content)
        except (TimeoutError, OSError, ValueError, aiohttp.ClientError) as error:
            why = str(error) or type(error).__name__
            raise ApiError(
                0, f"Kubernetes' API server does not answer: {why}"[:MAX_MESSAGE]
            ) from None
        told = _object(content)
        if reply.status >= 300:
            message = str(told.get("message") or reply.reason)[:MAX_MESSAGE]
            retry_after = _seconds(reply.headers.get("retry-after", ""))
            raise ApiError(
                reply.status, f"Kubernetes refuses ({reply.status}): {message}", retry_after
            )
        return told

    def _token(self) -> str:
        """Raises ApiError."""
        try:
            with self.access.token_file.open("rb") as file:
                return file.read(MAX_TOKEN_BYTES).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ApiError(0, f"no token for Kubernetes: {error}") from None


async def _bounded(stream: aiohttp.StreamReader) -> bytes:
    content = bytearray()
    while piece := await stream.read(MAX_BYTES):
        content += piece
        if len(content) > MAX_BYTES:
            raise ValueError(f"an answer of more than {MAX_BYTES} bytes")
    return bytes(content)


def _object(content: bytes) -> Object:
    """Return an answer's object; of one that has none, such as a proxy's page, an empty one."""
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def _seconds(written: str) -> float:
    return min(float(written), MAX_WAIT) if written.isascii() and written.isdecimal() else 0.0
