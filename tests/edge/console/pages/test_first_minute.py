"""The first minute with the console, by anybody: two clicks, keys, names, narrow windows."""

from __future__ import annotations

import httpx
import pytest
from tests.edge.console.browsing import BROWSER, HUGE, NARROW, WIDE, Pages, ask, said, shot, until
from tests.edge.support import ACCOUNT, Deployment

pytestmark = BROWSER


# --- the first minute ----------------------------------------------------------------------------


def test_the_first_answer_is_two_clicks_away(at: Deployment, pages: Pages) -> None:
    page = pages.open()  # the link that `skerry up` prints
    assert "login" not in page.evaluate("location.href")
    page.click("#run")
    page.wait_for_selector("text=Done:")
    assert page.inner_text(".answer p:last-of-type") == "Hello"
    assert at.region.submits[-1].sampling.temperature == 1.0
    assert page.inner_text(".asked") == "Why is the sky blue?"


def test_a_code_that_is_void_leads_to_the_form(at: Deployment, pages: Pages) -> None:
    page = pages.open(f"{pages.base}/console/#login=0.0.0.0")
    page.wait_for_selector("text=This code is void")
    assert page.evaluate("location.hash") == ""
    page.fill("#token", "skerry_no_token")
    page.click(".login .primary")
    page.wait_for_selector("text=This token is wrong")
    shot(page, "login-dark")
    page.fill("#token", at.token)
    page.keyboard.press("Enter")
    page.wait_for_selector("#run")
    kept = page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie])")
    assert at.token.split("_", 2)[2] not in kept + page.content()


def test_a_session_that_was_revoked_leads_to_the_form(at: Deployment, pages: Pages) -> None:
    _, record = at.edge.tokens.create(account_id=ACCOUNT, now=0)
    page = pages.open(pages.link(record.id))
    page.wait_for_selector("#run")
    at.edge.tokens.revoke(record.id)
    page.click("#run")
    page.wait_for_selector("#token")


# --- for everybody -------------------------------------------------------------------------------


def test_the_keyboard_is_enough(at: Deployment, pages: Pages) -> None:
    page = pages.open()
    page.wait_for_selector("#run:focus")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Done:")
    page.focus("#ask")
    page.keyboard.type("Again")
    page.keyboard.press("Control+Enter")
    until(page, "document.querySelectorAll('.asked').length === 2")
    page.wait_for_selector("text=Done:")
    page.keyboard.press("Control+Shift+Enter")
    page.wait_for_selector("text=Identical")
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    theme = page.evaluate("document.documentElement.dataset.theme")
    page.keyboard.press("n")
    assert page.evaluate("document.documentElement.dataset.theme") != theme


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("size", [WIDE, (820, 1180), NARROW, HUGE])
def test_nothing_is_wider_than_the_window(
    at: Deployment, pages: Pages, size: tuple[int, int], theme: str
) -> None:
    at.region.script = said("Hello " * 60)
    page = pages.open(size=size, theme=theme)
    ask(page)
    page.wait_for_selector("text=Done:")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    shot(page, f"playground-{size[0]}-{theme}")


def test_every_control_has_a_name(at: Deployment, pages: Pages) -> None:
    page = pages.open()
    page.wait_for_selector("#run")
    page.check("#schema")
    page.check("#tools")
    page.check("#side")
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll('button, input, select, textarea, a')]
            .filter(e => e.offsetParent !== null)
            .filter(e => !(e.innerText?.trim() || e.labels?.length || e.getAttribute('aria-label')))
            .map(e => e.outerHTML)"""
    )
    assert unnamed == []


def test_the_layout_stays_while_it_streams(at: Deployment, pages: Pages) -> None:
    at.region.script = said("Hello\n\nworld " * 20)
    page = pages.open()
    page.wait_for_selector("#run")
    page.evaluate(
        """() => { window.shift = 0; new PerformanceObserver(list => {
            const own = list.getEntries().filter(each => !each.hadRecentInput);
            window.shift += own.reduce((sum, each) => sum + each.value, 0);
        }).observe({type: 'layout-shift', buffered: false}); }"""
    )
    ask(page)
    page.wait_for_selector("text=Done:")
    assert page.evaluate("window.shift") < 0.01


def test_an_edge_that_is_gone_is_named(at: Deployment, pages: Pages) -> None:
    page = pages.open()
    page.wait_for_selector("#run")
    page.context.set_offline(True)
    ask(page)
    page.wait_for_selector("text=This edge does not answer.")
    page.context.set_offline(False)
    ask(page)
    page.wait_for_selector("text=Done:")


def test_no_page_of_others_can_frame_it(at: Deployment, pages: Pages) -> None:
    headers = httpx.get(f"{pages.base}/console/").headers
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-frame-options"] == "DENY"
