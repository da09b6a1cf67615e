"""axe-core's rules of accessibility: no page breaks one, by night and by day, wide and narrow."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.edge.api.batch.test_openai_batches import chat, create, lines
from tests.edge.console.browsing import BROWSER, NARROW, WIDE, Pages, close
from tests.edge.console.pages.test_regions_page import SEA
from tests.edge.support import ACCOUNT, Deployment, deployed
from tests.edge.telemetry.test_tracing import split_attempt
from tests.tools import CACHE, DOWNLOAD_SECONDS, Absent

from skerry_edge.gate.admission import Admission
from skerry_edge.ledger.stores import Stores
from skerry_edge.limits import Limits
from skerry_edge.money.caps import Caps
from skerry_edge.money.sqlite_spending import SqliteSpending

pytestmark = BROWSER

RUN = """axe.run(document).then(result => JSON.stringify(result.violations.map(each =>
    [each.id, ...each.nodes.map(node => node.target.join(' '))])))"""
PAGES = {
    "playground": "#run", "requests": ".requests tbody tr", "one request": ".why-row",
    "regions": ".light", "models": ".models tbody tr", "usage": ".sums",
    "batches": ".batches tbody tr", "login": "#token",
    "docs": ".doc dl", "docs/console": ".doc img", "docs/calls/createMessage": ".try .check",
}  # fmt: skip


@pytest.fixture(scope="module")
def browsed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    SEA.restore()
    folder = tmp_path_factory.mktemp("axe")
    spending = SqliteSpending(folder / "spending.db")
    with deployed(
        folder, Limits(drain_seconds=1), console="loopback", fleet=lambda: SEA.fleet,
        platform=ACCOUNT, keeps_batches=True, admission=Admission(spending=spending),
        stores=Stores.in_folder(folder / "stores", edge="edge-1"),
    ) as edge:  # fmt: skip
        edge.edge.tokens.create(account_id=ACCOUNT, name="ci", caps=Caps(per_day=1.0), now=0)
        with openai.OpenAI(
            api_key=edge.token, base_url=f"http://127.0.0.1:{edge.port}/v1", max_retries=0
        ) as client:
            create(client, lines(chat("a")) + b"no json\n")
        yield edge
    close(spending)


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("size", [WIDE, NARROW])
@pytest.mark.parametrize("name", PAGES)
def test_no_rule_is_broken(
    at: Deployment, pages: Pages, name: str, size: tuple[int, int], theme: str
) -> None:
    axe = (npm_package("axe-core", "4.14.1") / "axe.min.js").read_text()
    at.region.attempts = [split_attempt()]
    identity = at.run(prompt="hi").headers["x-request-id"]
    paths = {"playground": "", "one request": f"requests/{identity}"}
    path = f"/console/{paths.get(name, name)}"
    url = f"{pages.base}/console/" if name == "login" else pages.link(path=path)
    page = pages.open(url, size=size, theme=theme)
    page.wait_for_selector(PAGES[name])
    if name == "playground":
        for each in ("#schema", "#tools", "#side"):
            page.check(each)
        page.click("#run")
        page.wait_for_selector("text=Done:")
    assert violations(page, axe) == []


def violations(page: Any, axe: str) -> list[Any]:
    """What axe finds: run by the debugger, so that the page's own policy stays in force."""
    debugger = page.context.new_cdp_session(page)
    debugger.send("Runtime.evaluate", {"expression": axe})
    done = debugger.send(
        "Runtime.evaluate", {"expression": RUN, "awaitPromise": True, "returnByValue": True}
    )
    found: list[Any] = json.loads(done["result"]["value"])
    return found


def npm_package(name: str, version: str) -> Path:
    """Return the folder of a package of npm's registry, unpacked once below `.cache/tools`.

    Skips the test that asks where it cannot be had; fails it under `SKERRY_TOOLS=required`.
    """
    root = CACHE / f"npm-{name}-{version}"
    try:
        if not (root / "complete").exists():
            if shutil.which("npm") is None:
                raise Absent("npm is not installed")
            shutil.rmtree(root, ignore_errors=True)
            root.mkdir(parents=True)
            _run_npm("pack", f"{name}@{version}", "--silent", folder=root)
            [archive] = root.glob("*.tgz")
            shutil.unpack_archive(archive, root, filter="data")
            (root / "complete").touch()
    except Absent as error:
        if os.environ.get("SKERRY_TOOLS") == "required":
            pytest.fail(str(error))
        pytest.skip(f"npm's {name} cannot be had: {error}")
    return root / "package"


def _run_npm(*arguments: str, folder: Path) -> None:
    """Raises Absent."""
    try:
        subprocess.run(
            ["npm", *arguments], cwd=folder, check=True, capture_output=True, text=True,
            timeout=DOWNLOAD_SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise Absent(said.strip()[-300:]) from None
