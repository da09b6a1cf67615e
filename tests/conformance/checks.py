"""What scenarios share: where the platform is, checks with names, and the line at the end."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, NoReturn

SECONDS = 120  # of a request
SHOWN = 400  # characters of a failure


@dataclass(frozen=True)
class Deployed:
    """The platform, as `run.py` says it to scenarios."""

    base_url: str
    account: str
    token: str
    chat_model: str
    embedding_model: str

    @property
    def ai(self) -> str:
        """Return the URL before `/v1`."""
        return f"{self.base_url}/client/v4/accounts/{self.account}/ai"

    @property
    def openai(self) -> str:
        """Return the URL that OpenAI's clients take."""
        return f"{self.ai}/v1"

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Return what a path below `…/ai` answers, asked without any client."""
        request = urllib.request.Request(
            self.ai + path,
            json.dumps(body).encode(),
            {"authorization": f"Bearer {self.token}", "content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return json.load(answer)


def deployed() -> Deployed:
    """Return the platform that runs."""
    return Deployed(
        base_url=os.environ["BASE_URL"].rstrip("/"),
        account=os.environ["ACCOUNT_ID"],
        token=os.environ["API_TOKEN"],
        chat_model=os.environ["CHAT_MODEL"],
        embedding_model=os.environ["EMBED_MODEL"],
    )


class Checks:
    """Runs functions, plain or async, as they are decorated; with `VERBOSE=1` it prints each."""

    def __init__(self, package: str) -> None:
        """`package` is the client's name on the index."""
        self._package = package
        self._failures: dict[str, str] = {}
        self._number = 0

    def __call__(self, check: Callable[[], Any]) -> None:
        """Run a check: it fails by an exception."""
        name, started, self._number = check.__name__, time.monotonic(), self._number + 1
        try:
            if inspect.iscoroutinefunction(check):
                asyncio.run(check())
            else:
                check()
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            self._failures[name] = text[:SHOWN]
        if os.environ.get("VERBOSE"):
            verdict = self._failures.get(name, "ok")
            sys.stderr.write(f"  {name} {time.monotonic() - started:.2f} s: {verdict}\n")

    def close(self) -> NoReturn:
        """Print the closing line, and exit."""
        passed = self._number - len(self._failures)
        verdict = "FAIL" if self._failures else "PASS"
        told = "".join(f" | {name}: {text}" for name, text in self._failures.items())
        sys.stdout.write(
            f"{verdict} {self._package} {version(self._package)} {passed}/{self._number}{told}\n"
        )
        sys.exit(bool(self._failures))
