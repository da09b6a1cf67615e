"""The page of regions in a browser: what an edge sees, and what happens while it is looked at."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from tests.edge.console.browsing import BROWSER, HUGE, NARROW, WIDE, Pages, shot
from tests.edge.support import ACCOUNT, Deployment, deployed

from skerry_edge.limits import Limits
from skerry_regions.region.region_figures import SeenFleet, SeenNode, SeenRegion
from skerry_regions.wire.reports import EngineWork

pytestmark = BROWSER

PLACES = {"fra": (50.1, 8.6), "iad": (39.0, -77.5), "sin": (1.3, 103.9), "gru": (-23.4, -46.5)}
HOSTILE = "<img src=x onerror=alert(1)>\u202e"


class Sea:
    """What the edge sees; the tests change it."""

    def __init__(self) -> None:
        self.fleet = SeenFleet()
        self.restore()

    def restore(self) -> None:
        regions = [
            SeenRegion(name=name, place=place, rtt=0.04 * number, queue_seconds=0.012, nodes=3)
            for number, (name, place) in enumerate(PLACES.items())
        ]
        nodes = [
            SeenNode(
                id=f"fra-{number}", region="fra", role="hybrid", model="@cf/test/bytes",
                state="ready", streams=number, queue_seconds=0.005 * number,
                work=EngineWork(
                    busy_seconds=0.0, looked_up_tokens=100, hit_tokens=25, blocks=64, blocks_used=16
                ),
            )
            for number in range(3)
        ]  # fmt: skip
        self.fleet = SeenFleet(region="fra", regions=regions, nodes=nodes)

    def node(self, place: int, **changes: Any) -> None:
        nodes = [*self.fleet.nodes]
        nodes[place] = replace(nodes[place], **changes)
        self.fleet = replace(self.fleet, nodes=nodes)


SEA = Sea()


@pytest.fixture(scope="session")
def browsed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("sea")
    with deployed(
        folder, Limits(), console="loopback", fleet=lambda: SEA.fleet, platform=ACCOUNT
    ) as edge:
        yield edge


@pytest.fixture
def page(pages: Pages) -> Any:
    SEA.restore()
    opened = pages.open(pages.link(path="/console/regions"))
    opened.wait_for_selector(".light")
    return opened


def cells(page: Any, name: str) -> list[str]:
    found: list[str] = page.locator(f"tr[data-name='{name}'] :is(th, td)").all_inner_texts()
    return [" ".join(each.split()) for each in found]


def test_it_shows_what_the_edge_sees(page: Any) -> None:
    name, state, *told = cells(page, "fra-2")
    assert (name, state) == ("fra-2", "● ready")
    assert told[:4] == ["hybrid", "bytes", "2", "10 ms"]
    assert told[5:] == ["25 %", "25 %"]
    assert cells(page, "iad") == ["iad", "● ready", "40 ms", "12 ms", "3"]
    lights = page.locator(".light")
    assert {lights.nth(place).get_attribute("data-region") for place in range(4)} == set(PLACES)
    assert page.get_attribute(".light[data-home]", "data-region") == "fra"


def test_a_node_that_is_lost_is_shown_within_a_second(page: Any) -> None:
    SEA.node(1, state="down")
    lost = time.monotonic()
    page.wait_for_selector("tr[data-name='fra-1'][data-state='down']")
    assert time.monotonic() - lost < 5.0  # half a second, and as long as a busy machine takes
    SEA.node(1, state="ready")
    page.wait_for_selector("tr[data-name='fra-1'][data-state='ready']")


def test_a_region_that_is_lost_is_out(page: Any) -> None:
    regions = [
        replace(each, is_up=False, rtt=None) if each.name == "sin" else each
        for each in SEA.fleet.regions
    ]
    SEA.fleet = replace(SEA.fleet, regions=regions)
    page.wait_for_selector(".light[data-region='sin'][data-state='down']")
    assert "no connection" in page.get_attribute(".light[data-region='sin']", "aria-label")
    assert cells(page, "sin")[1:3] == ["✕ down", "—"]
    shot(page, "region-lost-dark")


def test_a_light_chooses_its_nodes(page: Any) -> None:
    page.click(".light[data-region='iad']")
    page.wait_for_selector("text=Nodes of iad: 0")
    assert page.evaluate("location.pathname") == "/console/regions/iad"
    page.keyboard.press("Escape")
    page.wait_for_selector("text=Nodes: 3")


def test_of_a_thousand_nodes_the_rows_in_view_are_made(page: Any) -> None:
    here = SEA.fleet.nodes
    more = [replace(here[0], id=f"node-{number:04}") for number in range(3, 1000)]
    SEA.fleet = replace(SEA.fleet, nodes=[*here, *more])
    page.wait_for_selector("tr[data-name='node-0003']")
    table = page.locator("[aria-label='Table of nodes']")
    assert table.locator("table").get_attribute("aria-rowcount") == "1001"
    for place, shown in ((1e9, "node-0999"), (0, "fra-0")):
        table.evaluate("(box, place) => { box.scrollTop = place; }", place)
        page.wait_for_selector(f"tr[data-name='{shown}']")
        assert table.locator("tbody tr").count() < 100


def test_names_are_text(page: Any) -> None:
    SEA.node(0, id=HOSTILE, role=HOSTILE)
    page.wait_for_selector("th:has-text('⟨U+202E⟩')")
    assert page.locator("main img").count() == 0


def test_a_tenant_sees_no_platform(at: Deployment, pages: Pages) -> None:
    _, record = at.edge.tokens.create(account_id="f" * 32, role="developer", now=0)
    opened = pages.open(pages.link(record.id, path="/console/regions"))
    opened.wait_for_selector("text=This is for the platform's own people")


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("size", [WIDE, (820, 1180), NARROW, HUGE])
def test_it_fits_into_the_window(pages: Pages, size: tuple[int, int], theme: str) -> None:
    SEA.restore()
    opened = pages.open(pages.link(path="/console/regions"), size=size, theme=theme)
    opened.wait_for_selector(".light")
    assert opened.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    shot(opened, f"regions-{size[0]}-{theme}")
