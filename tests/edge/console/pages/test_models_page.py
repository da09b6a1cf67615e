"""The page of models in a browser: those that a login may ask, and where they run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.edge.console.browsing import BROWSER, NARROW, WIDE, Pages, shot
from tests.edge.console.pages.test_regions_page import SEA
from tests.edge.scripted_region import MODEL
from tests.edge.support import ACCOUNT, CHAT, Deployment, deployed

from skerry_edge.limits import Limits

pytestmark = BROWSER


@pytest.fixture(scope="module")
def browsed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("models")
    with deployed(
        folder, Limits(), console="loopback", fleet=lambda: SEA.fleet, platform=ACCOUNT
    ) as edge:
        yield edge


def cells(page: Any, name: str) -> list[str]:
    found: list[str] = page.locator(f"tr[data-name='{name}'] td").all_inner_texts()
    return [" ".join(each.split()) for each in found]


def test_models_are_those_of_the_catalog_and_nodes_those_that_are_seen(
    at: Deployment, pages: Pages
) -> None:
    SEA.restore()
    page = pages.open(pages.link(path="/console/models"))
    page.wait_for_selector(f"tr[data-name='{MODEL}'] >> text=3 of 3")
    spec = at.edge.catalog.resolve(MODEL)
    assert cells(page, MODEL) == [
        str(spec.context_window), "1.00 B", "● 3 of 3", "3", "25 %", "t 1 p 1",
        f"{spec.price.prompt:g} · {spec.price.cached:g} · {spec.price.output:g}", "Try",
    ]  # fmt: skip
    SEA.node(1, state="down")
    page.wait_for_selector(f"tr[data-name='{MODEL}'] >> text=2 of 3")
    SEA.restore()
    page.click(f"tr[data-name='{CHAT}'] >> text=Try")
    page.wait_for_selector("#run")
    assert page.input_value("#model") == CHAT


def test_a_filter_leaves_what_it_names(pages: Pages) -> None:
    page = pages.open(pages.link(path="/console/models"))
    page.wait_for_selector(f"tr[data-name='{MODEL}']")
    page.keyboard.press("/")
    page.keyboard.type("chat")
    page.wait_for_selector(f"tr[data-name='{MODEL}']", state="hidden")
    assert page.is_visible(f"tr[data-name='{CHAT}']")
    page.keyboard.type("no such")
    page.wait_for_selector("text=No model of that name is served here.")


def test_every_page_is_reached_by_keys_alone(pages: Pages) -> None:
    page = pages.open()
    page.wait_for_selector("#run")
    page.keyboard.press("Escape")
    links = page.locator(".nav a")
    for place in range(links.count()):
        keys, name = (
            links.nth(place).get_attribute(each) for each in ("aria-keyshortcuts", "data-page")
        )
        for key in keys.split():
            page.keyboard.press(key)
        page.wait_for_selector(f"main[data-page='{name}']")
        page.wait_for_selector(f".nav a[data-page='{name}'][aria-current='page']")
        assert page.evaluate("location.pathname") == f"/console/{name}"
        page.keyboard.press("Escape")
    assert links.count() == 7


def test_a_tenant_sees_what_it_may_run_and_no_node(at: Deployment, pages: Pages) -> None:
    _, record = at.edge.tokens.create(account_id="f" * 32, role="developer", models=(CHAT,), now=0)
    page = pages.open(pages.link(record.id, path="/console/models"))
    page.wait_for_selector(f"tr[data-name='{CHAT}']")
    assert page.locator(f"tr[data-name='{MODEL}']").count() == 0
    assert page.locator("th:has-text('Nodes')").count() == 0


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("size", [WIDE, (820, 1180), NARROW])
def test_it_fits_into_the_window(pages: Pages, size: tuple[int, int], theme: str) -> None:
    page = pages.open(pages.link(path="/console/models"), size=size, theme=theme)
    page.wait_for_selector(".models tbody tr")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    shot(page, f"models-{size[0]}-{theme}")
