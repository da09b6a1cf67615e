"""The control plane's pages in a browser, over what it really runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.e2e.command import MODEL, Skerry, new_home, until
from tests.edge.console.browsing import NARROW, WIDE, PlatformPages, shot
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


@pytest.fixture(scope="module")
def skerry(tmp_path_factory: pytest.TempPathFactory, default_model: ModelFiles) -> Iterator[Skerry]:
    parent = tmp_path_factory.mktemp("control")
    skerry = new_home(parent, default_model)
    (parent / "topology.yaml").write_text(TOPOLOGY)
    with running(skerry, parent / "topology.yaml"):
        yield skerry


@pytest.fixture
def pages(chromium: Any, skerry: Skerry) -> Iterator[PlatformPages]:
    made = PlatformPages(chromium, skerry, "--control")
    yield made
    made.close()
    assert made.faults == []


def cells(page: Any, name: str) -> list[str]:
    found: list[str] = page.locator(f"tr[data-name='{name}'] :is(th, td)").all_inner_texts()
    return [" ".join(each.split()) for each in found]


def test_a_node_is_drained_once_its_successor_is_ready(pages: PlatformPages) -> None:
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


def test_what_was_wanted_is_wanted_again(pages: PlatformPages, skerry: Skerry) -> None:
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


def test_the_consoles_of_a_platform_lead_to_each_other(
    pages: PlatformPages, skerry: Skerry, chromium: Any
) -> None:
    page = pages.open()
    edges = page.get_attribute("#elsewhere", "href")
    assert page.inner_text("#elsewhere") == "Edge"
    others = PlatformPages(chromium, skerry)
    assert edges == f"{others.base}/console/"
    page = others.open()
    assert page.get_attribute("#elsewhere", "href") == f"{pages.base}/console/"
    page.click("#logout")
    page.wait_for_selector("#elsewhere", state="hidden")
    others.close()
    assert others.faults == []


def test_a_viewer_sees_it_and_drains_nothing(pages: PlatformPages, skerry: Skerry) -> None:
    page = log_in(pages, skerry, "viewer")
    page.wait_for_selector("text=All of it is there.")
    drains = page.locator("button:has-text('Drain')")
    assert drains.count() >= 3
    assert drains.evaluate_all("all => all.every(each => each.disabled && each.title)")
    node = page.locator("section[aria-label=Processes] tbody tr").first.get_attribute("data-name")
    assert forged(page, "POST", f"nodes/{node}/drain") == 403


def forged(page: Any, method: str, path: str) -> int:
    """The status of a call that the page offers nobody, with all that a page of the console has."""
    status: int = page.evaluate(
        """([method, path]) => fetch(path, {method, headers: {"x-skerry-console": "1"}})
        .then((reply) => reply.status)""",
        [method, f"/console/api/control/v1/{path}"],
    )
    return status


def log_in(pages: PlatformPages, skerry: Skerry, role: str, path: str = "/console/") -> Any:
    made = skerry("tokens", "create", "--name", role, "--role", role)
    page = pages.open(f"{pages.base}{path}")
    page.fill("#token", made.stdout.split()[0])
    page.keyboard.press("Enter")
    return page


def accepted(skerry: Skerry, secret: str) -> bool:
    config = json.loads((skerry.home / "config.json").read_text())
    url = f"{config['url']}/client/v4/accounts/{config['account_id']}/ai/caps"
    return httpx.get(url, headers={"authorization": f"Bearer {secret}"}).status_code == 200


def test_a_token_is_made_capped_rotated_and_revoked_by_keys_alone(
    pages: PlatformPages, skerry: Skerry
) -> None:
    page = pages.open(permissions=["clipboard-read", "clipboard-write"])
    page.wait_for_selector("text=All of it is there.")
    keys = page.keyboard
    keys.press("g")
    keys.press("t")
    page.wait_for_selector("text=The control plane has made no token yet")
    shot(page, "tokens-empty")
    page.focus(".blank .primary")
    keys.press("Enter")
    keys.type("laptop")  # the first field has the focus
    keys.press("Tab")
    keys.type("developer")
    for _ in range(5):  # past role and scopes
        keys.press("Tab")
    keys.type(f"{MODEL}, @cf/meta/*")
    keys.press("Tab")
    keys.type("2.5")
    shot(page, "tokens-new")
    keys.press("Enter")
    page.wait_for_selector("text=It is shown this once")
    page.click("dialog >> text=Copy")
    page.wait_for_selector("text=Copied")
    secret = page.evaluate("navigator.clipboard.readText()")
    assert secret == page.inner_text(".secret")
    assert accepted(skerry, secret)
    keys.press("Escape")  # what cannot be shown again is closed by its button alone
    page.mouse.click(5, 5)
    page.click("text=I have stored it")
    page.wait_for_selector("tbody >> text=laptop")
    assert secret.split("_")[2] not in page.content()
    assert page.evaluate("Object.keys(localStorage).length + sessionStorage.length") == 0
    row = page.locator("tbody tr").first
    assert row.locator("td").all_inner_texts()[:5] == [
        "developer", "run, read", f"{MODEL}, @cf/meta/*", "anywhere", "2.5 a day",
    ]  # fmt: skip

    page.focus("[aria-label='Cap… laptop']")
    keys.press("Enter")
    keys.press("Control+A")
    keys.type("7")
    keys.press("Tab")
    keys.type("40")
    keys.press("Enter")
    page.wait_for_selector("td:text-is('7 a day, 40 a month')")
    page.focus("[aria-label='Rotate… laptop']")
    keys.press("Enter")
    page.wait_for_selector("text=works for another hour")
    page.click("dialog .primary")
    page.wait_for_selector("text=It is shown this once")
    rotated = page.inner_text(".secret")
    page.click("text=I have stored it")
    assert rotated != secret
    assert accepted(skerry, secret), "for an hour"
    assert accepted(skerry, rotated)
    page.evaluate("document.activeElement.blur()")
    shot(page, "tokens-dark")
    page.focus("[aria-label='Revoke… laptop']")
    keys.press("Enter")
    page.click("text=Leave it")
    assert accepted(skerry, rotated)
    page.focus("[aria-label='Revoke… laptop']")
    keys.press("Enter")
    page.click("dialog .danger")
    page.wait_for_selector("text=The control plane has made no token yet")
    assert not accepted(skerry, rotated)


def test_what_refuses_a_token_is_said_where_it_is_made(pages: PlatformPages) -> None:
    page = pages.open(pages.link(path="/console/tokens"))
    page.click("text=New token")
    page.fill("#field-name", "t")
    page.fill("#field-models", "@cf/*/x")
    page.click("text=Make it")
    page.wait_for_selector("dialog .fault >> text=models")
    assert page.input_value("#field-name") == "t"
    page.select_option("#field-role", "viewer")
    assert not page.is_checked("[value=run]")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")


def test_an_account_gets_a_cap_that_edges_count_by(pages: PlatformPages, skerry: Skerry) -> None:
    config = json.loads((skerry.home / "config.json").read_text())
    page = pages.open(pages.link(path="/console/tokens"))
    page.click(f"[aria-label='Cap… {config['account_id']}']")
    page.fill("#field-per_month", "40")
    page.click("dialog .primary")
    page.wait_for_selector("td:text-is('40 a month')")
    url = f"{config['url']}/client/v4/accounts/{config['account_id']}/ai/caps"
    headers = {"authorization": f"Bearer {config['api_token']}"}
    [cap] = until(lambda: httpx.get(url, headers=headers).json()["result"])
    assert (cap["payer"], cap["period"], cap["cap"]) == ("account", "month", 40.0)


def test_a_viewer_sees_tokens_and_no_act_or_secret(pages: PlatformPages, skerry: Skerry) -> None:
    page = pages.open(pages.link(path="/console/tokens"))
    page.click("text=New token")
    page.fill("#field-name", "seen")
    page.click("text=Make it")
    page.click("text=I have stored it")
    page = log_in(pages, skerry, "viewer", "/console/tokens")
    page.wait_for_selector("tbody >> text=seen")
    assert page.locator("main button").count() == 0
    token = page.locator("tbody tr").first.get_attribute("data-name")
    assert forged(page, "DELETE", f"api_tokens/{token}") == 403


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("size", [WIDE, NARROW])
@pytest.mark.parametrize("name", ["control", "stock", "tokens", "audit"])
def test_no_rule_of_accessibility_is_broken(
    pages: PlatformPages, name: str, size: tuple[int, int], theme: str
) -> None:
    axe = (npm_package("axe-core", "4.14.1") / "axe.min.js").read_text()
    page = pages.open(pages.link(path=f"/console/{name}"), size=size, theme=theme)
    page.wait_for_selector("main tbody tr")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert violations(page, axe) == []
    shot(page, f"{name}-{size[0]}-{theme}")
    if name == "tokens":
        page.click("text=New token")
        page.wait_for_selector("#field-name")
        assert violations(page, axe) == []
        shot(page, f"{name}-new-{size[0]}-{theme}")


def test_a_page_changes_the_platform_as_a_session_alone(
    pages: PlatformPages, skerry: Skerry
) -> None:
    page = pages.open(pages.link(path="/console/docs/calls/createRegion"))
    page.wait_for_selector(".try .primary:enabled")
    page.fill("[name=body]", '{"name": "osl", "iata": "OSL"}')
    page.fill("#token", json.loads((skerry.home / "config.json").read_text())["api_token"])
    page.click(".try .primary")
    page.wait_for_selector(".lane-note >> text=403, whole after")
    page.fill("#token", "")
    page.click(".try .primary")
    page.wait_for_selector(".lane-note >> text=201, whole after")
    assert json.loads(page.inner_text(".try pre"))["name"] == "osl"
    page.click(".pages >> text=DELETE /control/v1/regions/{id}")
    page.fill("#in-id:enabled", "osl")
    page.click(".try .primary")
    page.click("dialog .danger")
    page.wait_for_selector(".lane-note >> text=/20[24], whole after/")
