"""Calls of the control plane that survive a bad minute: `/control/v1` over HTTP.

A request whose answer was lost, or that the control plane could not take now, is sent again with
the same idempotency key, to the next of several control planes. Once Terraform winds up there are
no more pauses, and one last try.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import itertools
import logging
import random
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlencode

import msgspec

from skerry import __version__
from skerry_terraform.kit.diagnostics import ProviderError
from skerry_terraform.kit.planning import Object
from skerry_terraform.provider.connections import ControlConnections
from skerry_terraform.provider.refusals import (
    RequestRefused,
    decoded_body,
    refusal_of,
    unread_refusal,
)
from skerry_terraform.provider.settings import ControlAddress, ProviderSettings

log = logging.getLogger(__name__)

PREFIX = "/control/v1"
TRANSIENT = frozenset({429, 502, 503, 504})
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0  # seconds
MAX_RETRY_AFTER = 60.0  # seconds
FIRST_CONTACT_RETRIES = 4  # where it never was, of what a wrong address most likely brings
MAX_ANSWER_BYTES = 64 << 20
PAGE = 500  # resources of one list request
_WRONG_ADDRESS = (ConnectionRefusedError, socket.gaierror, ssl.SSLError)


class Unreachable(ProviderError):
    """No try was answered."""


@dataclass(frozen=True, slots=True)
class ControlResponse:
    """`was_repeated`: an earlier try of the request may have been carried out, too."""

    status: int
    body: Object
    was_repeated: bool = False


class ControlPlane:
    """Its client, for many threads. Connections are kept for the next request, until `close`."""

    def __init__(self, settings: ProviderSettings, stop: threading.Event) -> None:
        self._settings = settings
        self._stop = stop
        self._connections = ControlConnections(settings)
        self._was_reached = False
        self._validates = True
        self._lock = threading.Lock()
        self._num_equal: dict[str, int] = {}  # resources created by this process, by their digest
        self._keys: dict[tuple[str, str], str] = {}  # to be acknowledged, by collection and id

    @property
    def url(self) -> str:
        return self._settings.url

    def create(self, collection: str, values: Object) -> Object:
        """Create exactly one resource, however often it has to be sent. Raises RequestRefused.

        Until it is acknowledged, another process that creates an equal one with the same token is
        given this one: whoever was killed while it waited has left it to be found.
        """
        body = collection.encode() + msgspec.json.encode(values, order="deterministic")
        digest = hashlib.sha256(body).hexdigest()
        with self._lock:
            number = self._num_equal[digest] = self._num_equal.get(digest, 0) + 1
        key = f"{digest}-{number}"
        try:
            found = self._call("POST", f"/{collection}", values, {"idempotency-key": key})
        except RequestRefused:
            with self._lock:  # another try is the first again
                self._num_equal[digest] -= 1
            raise
        self._keys[collection, found["id"]] = key
        return found

    def key_of(self, collection: str, id: str) -> str | None:
        """Return the key that a resource was created with, where it was by this process."""
        return self._keys.get((collection, id))

    def acknowledge(self, key: str | None) -> None:
        """Have the control plane know that what was created with a key is in hand."""
        if key is not None:
            with contextlib.suppress(RequestRefused, Unreachable):  # an older one knows no keys
                self._call("DELETE", f"/idempotency_keys/{key}")

    def validate(self, kind: str, spec: Object, unknown: list[str]) -> None:
        """Check what is planned. Raises RequestRefused with the path of a field, or Unreachable.

        Unreachable once only: whatever else is planned is not checked. Nor is it by an older one.
        """
        if not self._validates:
            return
        try:
            self._call("POST", "/validate", {"kind": kind, "spec": spec, "unknown": unknown})
        except Unreachable:
            with self._lock:  # several resources are planned at a time
                is_first, self._validates = self._validates, False
            if is_first:
                raise
        except RequestRefused as refused:
            if refused.status not in (404, 405):
                field = (refused.field or "").removeprefix("spec").removeprefix(".")
                raise RequestRefused(refused.status, refused.message, field or None) from None

    def get(self, collection: str, id: str) -> Object | None:
        """Return it; None when there is none."""
        try:
            return self._call("GET", f"/{collection}/{quote(id, safe='')}")
        except RequestRefused as refused:
            if refused.status == 404:
                return None
            raise

    def update(self, collection: str, id: str, patch: Object, etag: str | None) -> Object:
        """Raises RequestRefused; with 412 when it was changed since it had that etag."""
        path = f"/{collection}/{quote(id, safe='')}"
        headers = {} if etag is None else {"if-match": f'"{etag}"'}
        answer = self._send("PATCH", path, patch, headers)
        if answer.status == 412 and answer.was_repeated:
            found = self.get(collection, id)  # was it we who changed it?
            if found is not None and all(found.get(name) == patch[name] for name in patch):
                return found
        return _body(answer)

    def delete(self, collection: str, id: str) -> bool:
        """Return whether it is gone already; else it drains. Raises RequestRefused."""
        path = f"/{collection}/{quote(id, safe='')}"
        answer = self._send("DELETE", path, None, {})
        if answer.status == 404:
            return True
        _body(answer)
        return answer.status == 204

    def list(self, collection: str) -> Iterator[Object]:
        """Yield all of them, page by page."""
        after: dict[str, str] = {}
        while True:
            query = urlencode({"limit": PAGE} | after)
            page = self._call("GET", f"/{collection}?{query}")
            yield from page["items"]
            if page["next"] is None:
                return
            after = {"after": page["next"]}

    def close(self) -> None:
        """Close idle connections; a later request opens another."""
        self._connections.close()

    def status(self) -> Object:
        """Return the platform at a glance."""
        return self._call("GET", "/status")

    def dns_answer(self, question: Mapping[str, str]) -> Object:
        """Return what a zone answers to `name`, `type` and `client`. Raises RequestRefused."""
        return self._call("GET", f"/dns_answer?{urlencode(question)}")

    def _call(
        self, method: str, path: str, body: Object | None = None,
        headers: dict[str, str] | None = None,
    ) -> Object:  # fmt: skip
        return _body(self._send(method, path, body, headers or {}))

    def _send(
        self, method: str, path: str, body: Object | None, headers: dict[str, str]
    ) -> ControlResponse:
        """Send it, with retries. Raises Unreachable."""
        payload = None if body is None else msgspec.json.encode(body)
        most = self._settings.max_retries
        for tried in itertools.count(1):
            retry_after, address = 0.0, self._connections.address
            try:
                status, data, retry_after = self._exchange(address, method, path, payload, headers)
                if status not in TRANSIENT:
                    return ControlResponse(status, decoded_body(data), was_repeated=tried > 1)
                trouble = unread_refusal(status, data).message
            except ssl.SSLCertVerificationError as error:
                trouble = f"its certificate: {error.verify_message}"
                raise self._unreachable(method, trouble) from None
            except (OSError, http.client.HTTPException) as error:
                trouble = str(error) or type(error).__name__
                if isinstance(error, _WRONG_ADDRESS) and not self._was_reached:
                    most = min(most, FIRST_CONTACT_RETRIES * len(self._settings.addresses))
            self._connections.turn_from(address)
            if tried > most:
                raise self._unreachable(method, trouble)
            log.info("%s %s: %s; trying again", method, path, trouble)
            if self._stop.wait(max(_pause(tried), retry_after)):
                most = tried
        raise AssertionError("unreachable")

    def _exchange(
        self,
        at: ControlAddress,
        method: str,
        path: str,
        payload: bytes | None,
        headers: dict[str, str],
    ) -> tuple[int, bytes, float]:
        """Return status, body and `Retry-After` in seconds. Raises OSError or HTTPException."""
        connection = self._connections.open(at)
        try:
            connection.request(
                method, PREFIX + path, payload, self._headers(payload is not None) | headers
            )
            answer = connection.getresponse()
            data = answer.read(MAX_ANSWER_BYTES + 1)
            if len(data) > MAX_ANSWER_BYTES:
                raise http.client.HTTPException("the answer is too long")
        except BaseException:
            connection.close()
            raise
        if answer.isclosed() and not answer.will_close:
            self._connections.keep(connection)
        else:
            connection.close()
        self._was_reached = True
        return answer.status, data, _seconds(answer.getheader("retry-after"))

    def _headers(self, has_body: bool) -> dict[str, str]:
        headers = {
            "authorization": f"Bearer {self._settings.token}",
            "user-agent": f"terraform-provider-skerry/{__version__}",
        }
        return headers | ({"content-type": "application/json"} if has_body else {})

    def _unreachable(self, method: str, trouble: str) -> Unreachable:
        detail = (
            f"{self.url}: {trouble}. Does it run there? `skerry up` and `skerry control` start one."
        )
        if method != "GET":
            detail += (
                " Whether the change was made is not known: the next plan shows it. If that then "
                "fails because the resource exists already, import it."
            )
        return Unreachable("Cannot reach the control plane", detail)


def _body(answer: ControlResponse) -> Object:
    """Return the body of a success. Raises RequestRefused."""
    if answer.status >= 300:
        raise refusal_of(answer.status, answer.body)
    return answer.body


def _pause(tried: int) -> float:
    """Return seconds: half of it jitter, doubling up to the longest."""
    longest = min(FIRST_PAUSE * 2 ** (tried - 1), LONGEST_PAUSE)
    return random.uniform(longest / 2, longest)


def _seconds(text: str | None) -> float:
    """Return those of a `Retry-After`, within bounds; a date counts as none."""
    if text is None or not text.isascii() or not text.isdigit():
        return 0.0
    return min(float(text[:9]), MAX_RETRY_AFTER)
