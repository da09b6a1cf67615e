"""A model hub over HTTP, as huggingface.co speaks it: repositories, small files, and where large
ones are.

    GET  /api/models/{repository}/revision/{revision}?blobs=true    commit, files, sizes, SHA-256
    HEAD /{repository}/resolve/{commit}/{path}                       a redirect to a content network

A token goes to the hub alone, never to where it redirects, and into no message. Several endpoints
(mirrors) are tried in their order.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import quote

import msgspec
from msgspec import Meta, Struct

from skerry_regions.models.problems import PullError
from skerry_regions.models.sources import Hub

if TYPE_CHECKING:  # a seventh of what a node imports, for nothing but downloads
    import httpx

READ_SECONDS: Final = 60.0
CONNECT_SECONDS: Final = 15.0
MAX_DOCUMENT: Final = 64 << 20  # bytes of what a repository lists
MAX_REDIRECTS: Final = 5
MAX_WAITS: Final = 5  # for a hub that wants fewer requests
LONGEST_WAIT: Final = 60.0  # seconds that a server may have us wait
MOVED: Final = (301, 302, 303, 307, 308)


class _LFS(Struct, frozen=True):
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    size: Annotated[int, Meta(ge=0)]


class HubFile(Struct, frozen=True, rename={"path": "rfilename", "git_id": "blobId"}):
    """A file of a repository."""

    path: str
    size: Annotated[int, Meta(ge=0)] = 0
    git_id: str = ""  # SHA-1 of git's blob
    lfs: _LFS | None = None  # of large files

    @property
    def sha256(self) -> str | None:
        return None if self.lfs is None else self.lfs.sha256

    @property
    def num_bytes(self) -> int:
        return self.size if self.lfs is None else self.lfs.size


class Repository(Struct, frozen=True, rename={"commit": "sha", "files": "siblings"}):
    """A repository at one commit."""

    id: str
    commit: Annotated[str, Meta(pattern=r"^[0-9a-f]{40}$")]
    files: list[HubFile] = []
    gated: bool | str = False
    tags: list[str] = []

    @property
    def license(self) -> str:
        """Return it as its card states it; nothing if it does not."""
        licences = [tag.partition(":")[2] for tag in self.tags if tag.startswith("license:")]
        return licences[0] if licences else ""

    def find(self, path: str) -> HubFile | None:
        return next((file for file in self.files if file.path == path), None)


@dataclass(frozen=True, slots=True)
class Location:
    """The URL of a file's bytes, for now."""

    url: str = field(repr=False)  # signed, so a secret
    headers: dict[str, str] = field(repr=False)  # the token, where it may be sent there

    @property
    def shown(self) -> str:
        """Return it without what is secret."""
        import httpx

        url = httpx.URL(self.url)
        return f"{url.scheme}://{url.netloc.decode()}{url.path}"


_repository_decoder = msgspec.json.Decoder(Repository)


def open_client() -> httpx.Client:
    """Return what a hub is called with."""
    import httpx

    timeout = httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
    return httpx.Client(timeout=timeout, follow_redirects=False)


@dataclass(slots=True)
class HubClient:
    """Calls a hub. Used by one thread, but for `locate`. Close it."""

    hub: Hub
    sleep: Callable[[float], None] = time.sleep
    client: httpx.Client = field(default_factory=open_client)
    _endpoint: int = 0  # the one that answered last

    def __enter__(self) -> HubClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def repository(self, name: str, revision: str) -> Repository:
        """Return what a repository has at a branch, tag or commit. Raises `PullError`."""
        path = f"/api/models/{quote(name)}/revision/{quote(revision, safe='')}"
        data = self._get(path, {"blobs": "true"}, name, MAX_DOCUMENT)
        try:
            found = _repository_decoder.decode(data)
        except msgspec.DecodeError as error:
            raise PullError(f"{name}: the hub describes it in another form: {error}") from None
        if bad := next((file.path for file in found.files if not _is_plain(file.path)), None):
            raise PullError(f"{name}: has a file of the name {bad[:200]!r}")
        return found

    def read(self, repository: str, commit: str, file: HubFile, limit: int) -> bytes:
        """Return the content of a small file, checked. Raises `PullError`."""
        if file.num_bytes > limit:
            raise PullError(f"{repository}: {file.path} has {file.num_bytes:,} bytes")
        data = self._get(resolve_path(repository, commit, file.path), {}, repository, limit)
        git_id = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
        sha256 = hashlib.sha256(data).hexdigest()
        if (file.sha256 or sha256) != sha256 or (
            file.sha256 is None and file.git_id not in ("", git_id)
        ):
            raise PullError(f"{repository}: {file.path} arrived corrupt; pull again")
        return data

    def head(self, location: Location, size: int) -> bytes:
        """Return the first bytes of a large file. Raises `PullError`."""
        import httpx

        headers = {"Range": f"bytes=0-{size - 1}", "Accept-Encoding": "identity"}
        try:
            with self.client.stream(
                "GET", location.url, headers=headers | location.headers
            ) as response:
                if response.is_error:
                    raise PullError(f"HTTP {response.status_code} from {location.shown}")
                data = bytearray()
                for chunk in response.iter_raw():
                    data += chunk
                    if len(data) >= size:
                        break
                return bytes(data[:size])
        except httpx.HTTPError as error:
            raise PullError(f"{location.shown}: {error}") from None

    def locate(self, repository: str, commit: str, path: str) -> Location:
        """Return where a file's bytes are now. Raises `PullError`."""
        response = self._ask("HEAD", resolve_path(repository, commit, path), {}, repository)
        target = response.request.url
        if response.status_code in MOVED:
            target = target.join(response.headers.get("Location", ""))
        return Location(str(target), self._token_for(target))

    # --- requests

    def _get(self, path: str, query: dict[str, str], repository: str, limit: int) -> bytes:
        for _ in range(MAX_REDIRECTS):
            response = self._ask("GET", path, query, repository)
            if response.status_code not in MOVED:
                if len(response.content) > limit:
                    raise PullError(f"{repository}: more than {limit} bytes")
                return response.content
            target = response.request.url.join(response.headers.get("Location", ""))
            path, query = str(target), {}
        raise PullError(f"{repository}: the hub redirects without end")

    def _ask(
        self, method: str, path: str, query: dict[str, str], repository: str
    ) -> httpx.Response:
        """Send to the endpoints in turn; return the first answer that is none of their own
        failures."""
        import httpx

        if self.hub.offline:
            raise PullError(
                f"{repository}: HF_HUB_OFFLINE is set, so nothing is asked of a hub. Unset it, or "
                "add files that are here: `skerry models add FILE --as ID`."
            )
        problem = ""
        count = len(self.hub.endpoints)
        for step in range(count):
            index = (self._endpoint + step) % count
            base = self.hub.endpoints[index].rstrip("/")
            try:
                url = httpx.URL(base + path if path.startswith("/") else path)
                response = self._patiently(method, url, query)
            except httpx.HTTPError as error:
                problem = f"{base}: {error or type(error).__name__}"
                continue
            if response.status_code >= 500:
                problem = f"{base}: HTTP {response.status_code}"
                continue
            self._endpoint = index
            if response.is_error:
                raise refusal(response, repository, base, has_token=self.hub.token is not None)
            return response
        raise PullError(
            f"{repository}: no hub answers ({problem}). Check the network, or name a mirror: "
            "HF_ENDPOINT=https://…"
        )

    def _patiently(self, method: str, url: httpx.URL, query: dict[str, str]) -> httpx.Response:
        for wait in range(MAX_WAITS):
            response = self.client.request(
                method,
                url,
                params=query or None,
                headers={"Accept-Encoding": "identity", **self._token_for(url)},
            )
            is_last = wait == MAX_WAITS - 1
            if response.status_code != HTTPStatus.TOO_MANY_REQUESTS or is_last:
                return response
            self.sleep(retry_after(response) or 1.0)
        raise AssertionError("the last answer is returned")

    def _token_for(self, url: httpx.URL) -> dict[str, str]:
        """Return the token, for the hub itself."""
        import httpx

        origins = [(httpx.URL(each).scheme, httpx.URL(each).netloc) for each in self.hub.endpoints]
        if self.hub.token is None or (url.scheme, url.netloc) not in origins:
            return {}
        return {"Authorization": f"Bearer {self.hub.token}"}


def resolve_path(repository: str, commit: str, path: str) -> str:
    return f"/{quote(repository)}/resolve/{quote(commit, safe='')}/{quote(path)}"


def refusal(response: httpx.Response, repository: str, base: str, *, has_token: bool) -> PullError:
    """Return what a refusal means, and what to do next."""
    code, status = response.headers.get("X-Error-Code", ""), response.status_code
    page = f"{base}/{repository}"
    if code == "GatedRepo":
        if has_token:
            return PullError(
                f"{repository} is gated, and your token's account has no access to it: ask for it "
                f"at {page}, then pull again."
            )
        return PullError(
            f"{repository} is gated: accept its licence at {page}, make a token at "
            f"{base}/settings/tokens, and pull again with HF_TOKEN=… set."
        )
    if code == "RevisionNotFound":
        return PullError(f"{repository} has no such revision; see {page}.")
    if code == "EntryNotFound":
        return PullError(f"{repository} has no such file; see {page}.")
    if code == "RepoNotFound" or status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.NOT_FOUND):
        private = "" if has_token else ", or is private: then set HF_TOKEN"
        return PullError(f"{base} has no repository {repository}{private}.")
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return PullError(f"{base} wants fewer requests: try again later, or with HF_TOKEN set.")
    return PullError(f"{repository}: HTTP {status} from {base}")


def _is_plain(path: str) -> bool:
    """Return whether a name stays inside a folder."""
    parts = path.split("/")
    return bool(path) and path.isprintable() and "\\" not in path and not {"", ".", ".."} & {*parts}


def retry_after(response: httpx.Response) -> float:
    """Return how many seconds a server wants us to wait, within a bound."""
    try:
        return min(max(float(response.headers.get("Retry-After", 0)), 0.0), LONGEST_WAIT)
    except ValueError:  # a date: clocks differ
        return 1.0
