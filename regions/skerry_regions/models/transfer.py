"""One large file over HTTP: in ranges side by side, gone on with after any end of the process.

Pieces are written where they belong as they arrive (`part_file`). In the end the whole file's
SHA-256 is compared, and what does not match is thrown away: a wrong file is never returned.

A link of a content network may expire, a server may know no ranges, the entity may change between
two pieces (`If-Range`): each costs a new request, not the file.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final

from skerry_regions.models.hub import LONGEST_WAIT, Location, retry_after
from skerry_regions.models.integrity import hash_file
from skerry_regions.models.part_file import PIECE, PartFile
from skerry_regions.models.problems import PullError
from skerry_regions.models.sources import Progress, Sized

if TYPE_CHECKING:
    import httpx

STREAMS: Final = 4  # requests at once
TRIES: Final = 6  # in a row without a byte, before giving up
_EXPIRED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND, HTTPStatus.GONE)


class _NoRanges(Exception):
    """The server answers a range with the whole file."""


class Transfer:
    """Fetches files by a client. `locate` is called again whenever a location does not serve."""

    def __init__(
        self,
        client: httpx.Client,
        *,
        piece: int = PIECE,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.client = client
        self._piece = piece
        self.sleep = sleep

    def fetch(
        self,
        name: str,
        size: int,
        sha256: str,
        locate: Callable[[], Location],
        target: Path,
        progress: Progress,
    ) -> None:
        """Bring a file to `target`, going on with `target.part`; its SHA-256 is as given.

        Raises `PullError`, after which what arrived is kept, and `OSError`.
        """
        part = PartFile(target.with_name(f"{target.name}.part"), size, self._piece)
        what = Sized(f"downloading {name}", size)

        def told(share: float) -> None:
            progress(what, share)

        try:
            for attempt in (1, 2):
                _FileTransfer(self, part, locate, name, told).fetch()
                found = hash_file(part.path, lambda _, share: progress(f"checking {name}", share))
                if found == sha256:
                    part.finish(target)
                    return
                part.clear()
                if attempt == 1:
                    progress(f"{name} arrived corrupt: downloading it again", 0.0)
            part.discard()
        finally:
            part.close()
        raise PullError(
            f"{name}: arrived corrupt twice: its SHA-256 is not {sha256[:16]}…, which the "
            "repository states. Nothing of it was kept; try later, or another mirror (HF_ENDPOINT)."
        )


class _FileTransfer:
    """One fetch of one file: what its threads share."""

    def __init__(
        self,
        transfer: Transfer,
        part: PartFile,
        locate: Callable[[], Location],
        name: str,
        progress: Callable[[float], None],
    ) -> None:
        self._transfer = transfer
        self._part = part
        self._locate = locate
        self._name = name
        self._progress = progress
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._location: Location | None = None
        self._etag: str | None = None
        self._there = part.bytes_there
        self._fruitless = 0  # tries in a row without a byte

    def fetch(self) -> None:
        """Fetch all missing pieces. Raises `PullError`."""
        if not (numbers := self._part.missing()):
            return
        self._progress(self._there / self._part.size)
        try:
            self._fetch_pieces(numbers[:1])  # alone: it shows what the server can do
            self._fetch_pieces(numbers[1:])
        except _NoRanges:
            self._fetch_whole()

    def _fetch_pieces(self, numbers: list[int]) -> None:
        with ThreadPoolExecutor(STREAMS, thread_name_prefix="pull") as pool:
            futures = [pool.submit(self._fetch_piece, number) for number in numbers]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
            finally:
                self._stop.set()
                for future in futures:
                    future.cancel()
        self._stop.clear()

    def _fetch_piece(self, number: int) -> None:
        start, end = self._part.bounds(number)
        offset = start
        while offset < end:
            if self._stop.is_set():
                return
            before = offset
            try:
                for data in self._range(offset, end):
                    self._part.write(offset, data)
                    offset += len(data)
                    self._arrived(len(data))
                    if self._stop.is_set():
                        return
                if offset < end:
                    raise _Try("the server ended the answer too early")
            except _Try as error:
                self._try_again(str(error), error.seconds, fruitful=offset > before)
        self._part.seal(number)

    def _range(self, start: int, end: int) -> Iterator[bytes]:
        """Yield bytes of a range. Raises `_NoRanges`, `_Try` and `PullError`."""
        headers = {"Range": f"bytes={start}-{end - 1}"}
        if self._etag is not None:
            headers["If-Range"] = self._etag
        with self._request(headers) as response:
            if response.status_code != HTTPStatus.PARTIAL_CONTENT:
                raise _NoRanges
            expected = f"bytes {start}-{end - 1}/{self._part.size}"
            if response.headers.get("Content-Range") != expected:
                raise PullError(
                    f"{self._name}: the server sends {response.headers.get('Content-Range')!r} "
                    f"where {expected!r} was asked for: the file is another one than is stated"
                )
            etag = response.headers.get("ETag", "")
            if self._etag is None and etag.startswith('"'):  # a weak one cannot promise bytes
                self._etag = etag
            left = end - start
            for data in response.iter_raw():
                yield data[:left]
                left -= len(data)
                if left <= 0:
                    return

    def _fetch_whole(self) -> None:
        """Fetch from the beginning in one answer; pieces that are whole are not kept, as the file
        may have changed since."""
        while True:
            self._part.clear()
            self._there = offset = 0
            self._etag, seconds = None, 0.0
            try:
                with self._request({}) as response:
                    for data in response.iter_raw():
                        if offset + len(data) > self._part.size:
                            raise PullError(
                                f"{self._name}: the server sends more than {self._part.size} bytes"
                            )
                        self._part.write(offset, data)
                        sealed = offset // self._part.piece
                        offset += len(data)
                        self._arrived(len(data))
                        for number in range(sealed, offset // self._part.piece):
                            self._part.seal(number)
                problem = f"the answer ended after {offset} of {self._part.size} bytes"
            except _Try as error:
                problem, seconds = str(error), error.seconds
            if offset == self._part.size:
                if self._part.missing():  # the last piece is a short one
                    self._part.seal(self._part.missing()[-1])
                return
            self._try_again(problem, seconds, fruitful=False)  # the next one begins at 0

    @contextmanager
    def _request(self, headers: dict[str, str]) -> Generator[httpx.Response]:
        """Open a good answer. Raises `_NoRanges`, `_Try` and `PullError`, also while it is read."""
        import httpx

        try:
            at = self._here()
            both = {"Accept-Encoding": "identity", **at.headers, **headers}
            with self._transfer.client.stream("GET", at.url, headers=both) as response:
                self._check_status(response)
                yield response
        except httpx.HTTPError as error:
            self._forget_location()
            raise _Try(str(error) or type(error).__name__) from None

    def _check_status(self, response: httpx.Response) -> None:
        """Raises `_Try` for what may be better at another time or place, `PullError` else."""
        status = response.status_code
        if status in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
            return
        if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise _NoRanges
        if status in _EXPIRED:
            self._forget_location()
            raise _Try(f"HTTP {status}: the link may have expired")
        if status in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS) or status >= 500:
            seconds = retry_after(response)
            if status >= 500:
                self._forget_location()
            raise _Try(f"HTTP {status}", seconds)
        raise PullError(f"{self._name}: HTTP {status} from {self._here().shown}")

    def _here(self) -> Location:
        with self._lock:
            if self._location is None:
                self._location = self._locate()
            return self._location

    def _forget_location(self) -> None:
        with self._lock:
            self._location = None

    def _arrived(self, count: int) -> None:
        with self._lock:
            self._fruitless = 0
            self._there += count
            self._progress(min(self._there / self._part.size, 1.0))

    def _try_again(self, problem: str, seconds: float, *, fruitful: bool) -> None:
        with self._lock:
            self._fruitless += not fruitful
            fruitless = self._fruitless
        if fruitless >= TRIES:
            raise PullError(
                f"{self._name}: could not be downloaded ({problem}). What arrived is kept: pull "
                "again to go on from there."
            )
        self._transfer.sleep(max(seconds, min(0.1 * 2**fruitless, LONGEST_WAIT)))


class _Try(Exception):
    """The same request may succeed."""

    def __init__(self, problem: str, seconds: float = 0.0) -> None:
        super().__init__(problem)
        self.seconds = seconds
