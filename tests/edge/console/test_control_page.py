"""The control plane's pages in a browser, over what it really runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.command import MODEL, Skerry, new_home
from tests.edge.console.browsing import NARROW, WIDE, Pages, shot
from tests.edge.console.test_axe import npm_package, violations
from tests.infra.watching import running

from skerry_regions.models.model_files import ModelFiles

pytestmark = [
    pytest.mark.slow,
    pytest.mark.model,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of the driver's pipes
]

TOPOLOGY = f"""\
regions: [{{name: fra, iata: FRA}}]
pools: [{{name: all, region: fra, role: hybrid, model: "{MODEL}", runner: toy}}]
edges: [{{name: edge, region: fra}}]
"""


class ControlPages(Pages):
    """Opens pages of the control plane that a home runs."""

    def __init__(self, chromium: Any, skerry: Skerry) -> None:
        super().__init__(chromium, None)  # type: ignore[arg-type]
        self._skerry = skerry
        self._base = self.link().partition("/console/")[0]

    def link(self, token_id: str | None = None, path: str = "/console/") -> str:
        address = self._skerry("console", "--control").stdout.strip()
        return address.replace("/console/", path)

    @property
    def base(self) -> str:
        return self._base


@pytest.fixture(scope="module")
def skerry(tmp_path_factory: pytest.TempPathFactory, default_model: ModelFiles) -> Iterator[Skerry]:
    parent = tmp_path_factory.mktemp("control")
    skerry = new_home(parent, default_model)
    (parent / "topology.yaml").write_text(TOPOLOGY)
    with running(skerry, parent / "topology.yaml"):
        yield skerry


@pytest.fixture
def pages(chromium: Any, skerry: Skerry) -> Iterator[ControlPages]:
    made = ControlPages(chromium, skerry)
    yield made
    made.close()
    assert made.faults == []


def cells(page: Any, name: str) -> list[str]:
    found: list[str] = page.locator(f"tr[data-name='{name}'] :is(th, td)").all_inner_texts()
    return [" ".join(each.split()) for each in found]


def test_a_node_is_drained_once_its_successor_is_ready(pages: ControlPages) -> None:
    page = pages.open()
    page.wait_for_selector("text=All of it is there.")
    assert cells(page, "pool fra-all")[:3] == ["fra-all pool", "● ready", "1 of 1"]
    node = page.locator("section[aria-label=Processes] tbody tr", has_text="fra-all-").first
    before = node.get_attribute("data-name")
    shot(page, "control-dark")
    page.click(f"[aria-label='Drain {before}']")
    page.click("dialog .button")  # leave it
    page.click(f"[aria-label='Drain {before}']")
    page.wait_for_selector("text=0 streams run there now.")
    page.click("dialog .danger")
    page.wait_for_selector(f"tr[data-name='{before}']", state="detached")
    page.wait_for_selector("tr[data-name='pool fra-all'] >> text=1 of 1")
    page.keyboard.press("g")
    page.keyboard.press("a")
    page.fill("#filter", f"drain {before}")
    page.wait_for_selector("text=1 of the newest")


def test_what_was_wanted_is_wanted_again(pages: ControlPages, skerry: Skerry) -> None:
    more = skerry.home.parent / "more.yaml"
    more.write_text("regions: [{name: oslo, iata: OSL}]\n")
    page = pages.open()
    page.wait_for_selector("text=All of it is there.")
    said = page.text_content(".lead")
    assert skerry("apply", "-f", str(more)).returncode == 0
    page.wait_for_selector("tr[data-name='region oslo']")
    page.click(f"[aria-label='Roll back to revision {said.split()[1]}']")
    page.wait_for_selector("dialog >> text=delete region")
    page.click("dialog .danger")
    page.wait_for_selector("tr[data-name='region oslo']", state="detached")
    page.keyboard.press("g")
    page.keyboard.press("a")
    for asked, known in (
        ("oslo", "2 of the newest"),
        ("", "the newest"),
        ("oslo", "2 of the newest"),
    ):
        page.fill("#filter", asked)
        page.wait_for_selector(f".tally:text-matches('^{known}')")
    done = [text.split() for text in page.locator("tbody .change b").all_inner_texts()]
    assert done == [["delete", "region"], ["create", "region"]]
    assert page.locator("tbody tr").count() == 2


def test_a_viewer_sees_it_and_drains_nothing(pages: ControlPages, skerry: Skerry) -> None:
    token = skerry("tokens", "create", "--name", "eyes", "--role", "viewer").stdout.split()[0]
    page = pages.open(f"{pages.base}/console/")
    page.fill("#token", token)
    page.keyboard.press("Enter")
    page.wait_for_selector("text=All of it is there.")
    drains = page.locator("button:has-text('Drain')")
    assert drains.count() >= 3
    assert drains.evaluate_all("all => all.every(each => each.disabled && each.title)")


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("size", [WIDE, NARROW])
@pytest.mark.parametrize("name", ["control", "audit"])
def test_no_rule_of_accessibility_is_broken(
    pages: ControlPages, name: str, size: tuple[int, int], theme: str
) -> None:
    axe = (npm_package("axe-core", "4.14.1") / "axe.min.js").read_text()
    page = pages.open(pages.link(path=f"/console/{name}"), size=size, theme=theme)
    page.wait_for_selector("main tbody tr")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert violations(page, axe) == []
    shot(page, f"{name}-{size[0]}-{theme}")
