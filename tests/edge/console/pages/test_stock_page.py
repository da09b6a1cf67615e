"""The control plane's page of models in a browser, over a real one and a hub on loopback."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.command import MODEL, Skerry, new_home
from tests.edge.console.browsing import PlatformPages, shot
from tests.edge.console.pages.test_control_page import TOPOLOGY, log_in
from tests.edge.console.test_axe import npm_package, violations
from tests.infra.watching import running
from tests.regions.models.hub_server import LocalHub, Repo, serving
from tests.regions.tiny_model import write_openable

from skerry_regions.models.model_files import ModelFiles

pytestmark = [
    pytest.mark.slow,
    pytest.mark.model,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of the driver's pipes
]

MIB = 1 << 20
ID = "@cf/me/tiny"
ROW = f"tr[data-name='{ID}']"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHub]:
    made = write_openable(tmp_path_factory.mktemp("hub") / "made.gguf").read_bytes()
    weights = made + random.Random(1).randbytes(37 * MIB)
    with serving(LocalHub({"me/tiny": Repo({"tiny-Q4_K_M.gguf": weights})})) as hub:
        yield hub


@pytest.fixture(scope="module")
def skerry(
    tmp_path_factory: pytest.TempPathFactory, default_model: ModelFiles, hub: LocalHub
) -> Iterator[Skerry]:
    parent = tmp_path_factory.mktemp("stock")
    skerry = new_home(parent, default_model)
    (parent / "topology.yaml").write_text(TOPOLOGY)
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("HF_ENDPOINT", hub.endpoint)
        environ.delenv("HF_TOKEN", raising=False)
        environ.setenv("HF_HOME", "/nonexistent")
        with running(skerry, parent / "topology.yaml"):
            yield skerry


@pytest.fixture
def pages(chromium: Any, skerry: Skerry) -> Iterator[PlatformPages]:
    made = PlatformPages(chromium, skerry, "--control")
    yield made
    made.close()
    assert made.faults == []


def test_a_model_is_pulled_cancelled_and_removed_by_keys_alone(
    pages: PlatformPages, hub: LocalHub
) -> None:
    page = pages.open()
    page.wait_for_selector("text=All of it is there.")
    keys = page.keyboard
    keys.press("g")
    keys.press("m")
    page.wait_for_selector(f"tr[data-name='{MODEL}'] >> text=fra-all")

    def pull() -> None:
        page.focus("main .tools .primary")
        keys.press("Enter")
        keys.press("Tab")  # past how: it is to be fetched
        keys.type("hf:me/tiny")
        keys.press("Tab")
        keys.type(ID)
        keys.press("Enter")

    hub.hold_after = 21 * MIB
    pull()
    page.wait_for_selector("text=/downloading tiny-Q4_K_M.gguf: [1-9][0-9]? % of 38.9 MB/")
    assert 0 < float(page.locator("progress").get_attribute("value")) < 1
    pull()  # another one of the same
    page.wait_for_selector("dialog .fault >> text=works on @cf/me/tiny already")
    keys.press("Escape")
    page.focus(f"[aria-label='Cancel {ID}']")
    page.wait_for_timeout(2500)  # the page looks meanwhile
    assert page.evaluate("document.activeElement.ariaLabel") == f"Cancel {ID}"
    shot(page, "stock-dark")
    keys.press("Enter")
    page.wait_for_selector("text=cancelling")
    hub.release.set()
    page.wait_for_selector("text=what has arrived is kept for a week")
    assert page.locator(ROW).count() == 0

    pull()
    page.wait_for_selector(f"{ROW} >> text=installed")
    page.wait_for_selector("text=licence apache-2.0, from hub:me/tiny@")
    page.focus(f"[aria-label='Memory {ID}']")
    keys.press("Enter")
    page.wait_for_selector("dialog >> text=for each token")
    page.wait_for_selector("dialog >> text=are free")
    shot(page, "stock-memory")
    keys.press("Escape")
    page.focus(f"[aria-label='Remove… {ID}']")
    keys.press("Enter")
    page.click("dialog .danger")
    page.wait_for_selector(ROW, state="detached")


def test_what_cannot_be_had_says_why(pages: PlatformPages) -> None:
    page = pages.open(pages.link(path="/console/stock"))
    page.click("text=New model…")
    page.fill("#field-source", "@cf/no/such")
    page.click("dialog .primary")
    page.wait_for_selector("dialog .fault >> text=no/such")
    page.select_option("#field-action", "add")
    page.fill("#field-source", "/etc/passwd")
    page.fill("#field-name", "@cf/me/own")
    page.click("dialog .primary")
    page.wait_for_selector("dialog .fault >> text=SKERRY_MODEL_FOLDERS")
    page.fill("#field-source", MODEL)
    page.click("dialog .primary")
    page.wait_for_selector(f"tr[data-name='{MODEL}'] >> text=@cf/me/own")
    page.click(f"[aria-label='Remove… {MODEL}']")
    page.click("dialog .danger")
    page.wait_for_selector("dialog .fault >> text=is wanted by fra-all")


def test_a_viewer_sees_models_and_what_they_take_alone(
    pages: PlatformPages, skerry: Skerry
) -> None:
    page = log_in(pages, skerry, "viewer", "/console/stock")
    page.wait_for_selector(f"tr[data-name='{MODEL}']")
    assert page.locator("main button").all_inner_texts() == ["Memory"]
    page.click("text=Memory")
    page.wait_for_selector("dialog >> text=are free")
    axe = (npm_package("axe-core", "4.14.1") / "axe.min.js").read_text()
    assert violations(page, axe) == []
