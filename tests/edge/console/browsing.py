"""A browser at a real edge: Debian's Chromium, driven by Playwright.

With `SKERRY_SHOTS=FOLDER` pictures of pages are kept there.
"""

from __future__ import annotations

import asyncio
import base64
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.command import Skerry
from tests.edge.scripted_region import answer
from tests.edge.support import EDGE, PATIENCE, Deployment

from skerry_edge.console.codes import new_code
from skerry_edge.money.sqlite_spending import SqliteSpending
from skerry_regions.wire.protocol import Submit

BROWSER = [
    pytest.mark.slow,
    pytest.mark.unmeasured,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of the driver's pipes
]
"""What marks tests of a browser at an edge in this process."""
WIDE, NARROW, HUGE = (1440, 900), (360, 740), (3840, 2160)
SHOTS = os.environ.get("SKERRY_SHOTS", "")


class Pages:
    """Opens pages, each in a browser context of its own, and collects what goes wrong in them."""

    def __init__(self, chromium: Any, edge: Deployment) -> None:
        self._chromium = chromium
        self._edge = edge
        self._contexts: list[Any] = []
        self.faults: list[str] = []

    def link(self, token_id: str | None = None, path: str = "/console/") -> str:
        token_id = token_id or self._edge.token.split("_")[1]
        code = new_code(self._edge.edge.secret, EDGE, token_id, time.time())
        return f"{self.base}{path}#login={code}"

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self._edge.port}"

    def open(
        self,
        url: str | None = None,
        *,
        size: tuple[int, int] = WIDE,
        theme: str = "dark",
        **more: Any,
    ) -> Any:
        width, height = size
        context = self._chromium.new_context(
            viewport={"width": width, "height": height}, color_scheme=theme, **more
        )
        self._contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE * 1000)
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("console", self._said)
        page.on("request", self._requested)
        page.goto(url or self.link())
        return page

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.faults.append(message.text)

    def _requested(self, request: Any) -> None:
        if not request.url.startswith((self.base, "data:", "blob:")):
            self.faults.append(f"outside: {request.url}")

    def close(self) -> None:
        for context in self._contexts:
            context.close()


class PlatformPages(Pages):
    """Opens pages of what a home runs, as `skerry console` with some options prints them."""

    def __init__(self, chromium: Any, skerry: Skerry, *options: str) -> None:
        super().__init__(chromium, None)  # type: ignore[arg-type]
        self._skerry = skerry
        self._options = options
        self._base = self.link().partition("/console/")[0]

    def link(self, token_id: str | None = None, path: str = "/console/") -> str:
        address = self._skerry("console", *self._options).stdout.strip()
        return address.replace("/console/", path)

    @property
    def base(self) -> str:
        return self._base


def ask(page: Any, prompt: str = "Hi") -> None:
    page.wait_for_selector("#run")
    page.fill("#ask", prompt)
    page.click("#run")


def until(page: Any, condition: str) -> None:
    """Wait for an expression of the page: by its debugger, since its policy lets nobody else."""
    deadline = time.monotonic() + PATIENCE
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(20)


def shot(page: Any, name: str) -> None:
    if SHOTS:
        Path(SHOTS).mkdir(parents=True, exist_ok=True)
        asked = {"format": "webp", "quality": 80}
        taken = page.context.new_cdp_session(page).send("Page.captureScreenshot", asked)
        (Path(SHOTS) / f"{name}.webp").write_bytes(base64.b64decode(taken["data"]))


def close(spending: SqliteSpending) -> None:
    """On a thread of its own: the driver's loop runs in this one."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, spending.close()).result()


def said(text: str) -> Callable[[Submit], Any]:
    return lambda submit: answer(text)
