"""A client of the control API, for commands: where it is, who calls, and its answers.

By the environment, as the Terraform provider has it (`SKERRY_CONTROL_URL`, `SKERRY_API_TOKEN`,
`SKERRY_CONTROL_CA_FILE`), else what the control plane of this home has written down. The URL may be
several with commas between them: of control planes of one platform, of which one leads.
"""

from __future__ import annotations

import itertools
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from skerry_cli.home.errors import CommandFailed
from skerry_cli.home.state import Home, known_config

if TYPE_CHECKING:
    import httpx

ANSWER_SECONDS = 30.0
GLANCE_SECONDS = 5.0  # for `status` and `top`, which show the rest without it
SUCCESSION_SECONDS = 15.0  # within which another control plane leads
PAUSE_SECONDS = 0.5  # after a round through all of them
CONVERGING = ("/apply", "/delete")  # done twice, they have done what they do once
MAX_NAMED = 5  # of what is not ready, in sentences


class PlatformError(CommandFailed):
    """The control plane cannot be reached, or refuses; the message says why."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        field: str | None = None,
        may_be_sent_again: bool = False,
    ) -> None:
        """`status` is that of HTTP, 0 of no answer; `field` names what is wrong of a body."""
        super().__init__(message)
        self.status = status
        self.field = field
        self.may_be_sent_again = may_be_sent_again or status == 503


class ControlView(Struct, frozen=True, kw_only=True):
    """What a control plane says at one moment; the lists are resources as its API gives them."""

    url: str
    revision: int
    observed_revision: int
    regions: list[dict[str, Any]]
    pools: list[dict[str, Any]]
    edge_nodes: list[dict[str, Any]]
    deployments: list[dict[str, Any]]
    nodes: list[dict[str, Any]]
    failing: list[dict[str, Any]] = []

    def troubles(self) -> list[str]:
        """Return a sentence on each resource that is degraded, or whose process keeps ending."""
        found = [
            f"{each['kind']} {each['id']}: {each['message']}"
            for each in self.failing
            if each["kind"] in ("dns_zone", "routing")  # others are degraded
        ]
        kinds = {"pool": self.pools, "edge": self.edge_nodes}
        for kind, resources in kinds.items():
            for each in resources:
                if each["status"]["phase"] == "degraded":
                    why = "; ".join(each["message"] for each in each["status"]["conditions"])
                    found.append(f"{kind} {each['id']} is degraded: {why}")
        more = len(found) - MAX_NAMED
        return found[:MAX_NAMED] + ([f"and {more} more are degraded"] if more > 0 else [])


@dataclass(frozen=True, slots=True)
class PlatformClient:
    """One control plane, or several of a platform, and the token that calls them."""

    url: str
    token: str
    ca_file: str | None = None
    seconds: float = ANSWER_SECONDS

    @classmethod
    def from_environ(cls, home: Home, environ: Mapping[str, str]) -> PlatformClient:
        """Return a client of what the environment names, else of this home's control plane.

        The home's token goes to the home's URL only. Raises PlatformError, or StateError.
        """
        config = known_config(home)
        ours = config.control_url
        url = (environ.get("SKERRY_CONTROL_URL") or ours).rstrip("/")
        if not url:
            raise PlatformError(
                "no control plane has run here: start one with `skerry up` or `skerry control`, or "
                "set SKERRY_CONTROL_URL and SKERRY_API_TOKEN"
            )
        token = environ.get("SKERRY_API_TOKEN")
        if not token and url == ours:
            token = config.api_token
        if not token:
            raise PlatformError(f"set SKERRY_API_TOKEN to a token of {url}")
        return cls(url, token, environ.get("SKERRY_CONTROL_CA_FILE") or None)

    @classmethod
    def of_home(cls, home: Home) -> PlatformClient:
        """Return a client of this home's control plane. Raises PlatformError, or StateError."""
        return cls.from_environ(home, {})

    def ask(
        self,
        method: str,
        path: str,
        values: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Return the answer; empty where it has no body. Raises PlatformError."""
        urls = self.url.split(",")
        give_up = time.monotonic() + min(self.seconds, SUCCESSION_SECONDS)
        for number, url in enumerate(itertools.cycle(urls), start=1):
            try:
                return self._ask(url, method, path, values, params)
            except PlatformError as error:
                is_last = len(urls) == 1 or time.monotonic() >= give_up
                if is_last or not error.may_be_sent_again:
                    raise
            if number % len(urls) == 0:
                time.sleep(PAUSE_SECONDS)
        raise AssertionError("unreachable")

    def _ask(
        self,
        url: str,
        method: str,
        path: str,
        values: Mapping[str, Any] | None,
        params: Mapping[str, str] | None,
    ) -> dict[str, Any]:
        """Return the answer of one of them. Raises PlatformError."""
        import httpx

        is_sealed = url.startswith("https:")  # else it is loopback: no proxy sees the token
        trust: ssl.SSLContext | bool = True
        try:
            if is_sealed and self.ca_file is not None:
                trust = ssl.create_default_context(cafile=self.ca_file)
            answer = httpx.request(
                method,
                f"{url}/control/v1{path}",
                json=values,
                params=params,
                headers={"authorization": f"Bearer {self.token}"},
                timeout=self.seconds,
                trust_env=is_sealed,
                verify=trust,
            )
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            was_not_sent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            raise PlatformError(
                f"{url} does not answer: {error}; `skerry up` or `skerry control` starts it",
                may_be_sent_again=was_not_sent or method == "GET" or path in CONVERGING,
            ) from None
        if not answer.is_success:
            raise _refusal(answer)
        found: dict[str, Any] = answer.json() if answer.content else {}
        return found

    def all(self, path: str) -> list[dict[str, Any]]:
        """Return every item of a collection. Raises PlatformError."""
        asked, items = {"limit": "500"}, list[dict[str, Any]]()
        while True:
            page = self.ask("GET", path, params=asked)
            items += page["items"]
            if page["next"] is None:
                return items
            asked["after"] = str(page["next"])

    def view(self) -> ControlView:
        """Return what is wanted and what runs. Raises PlatformError."""
        status = self.ask("GET", "/status")
        return ControlView(
            url=self.url,
            revision=status["revision"],
            observed_revision=status["observed_revision"],
            failing=status.get("failing", []),  # not of a control plane before 0.2
            **{
                name: self.all(f"/{name}")
                for name in ("regions", "pools", "edge_nodes", "deployments", "nodes")
            },
        )


def _refusal(answer: httpx.Response) -> PlatformError:
    try:
        error = answer.json()["error"]
        message, field = str(error["message"]), error.get("field")
    except (ValueError, LookupError, TypeError):
        return PlatformError(
            f"the control plane answers with HTTP status {answer.status_code}",
            status=answer.status_code,
        )
    return PlatformError(message, status=answer.status_code, field=field)
