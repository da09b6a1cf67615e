"""The pages of requests in a browser: rows, waterfalls and reasons are those of the traces."""

from __future__ import annotations

from typing import Any

import pytest
from tests.edge.console.browsing import BROWSER, NARROW, WIDE, Pages, shot, until
from tests.edge.scripted_region import MODEL
from tests.edge.support import ACCOUNT, Deployment
from tests.edge.telemetry.test_tracing import split_attempt

from skerry.errors import Unavailable

pytestmark = BROWSER

IN_VIEW = 15  # rows; how many are made below them follows from their height, once it is known


def rows_of(page: Any) -> list[str]:
    ids: list[str] = page.evaluate(
        "[...document.querySelectorAll('.requests tbody tr')].map(each => each.dataset.name)"
    )
    return ids


def test_a_request_is_in_the_list_as_soon_as_it_ended(at: Deployment, pages: Pages) -> None:
    page = pages.open(pages.link(path="/console/requests"))
    page.wait_for_selector(".tally:has-text('kept')")
    identity = at.run(prompt="hi").headers["x-request-id"]
    page.wait_for_selector(f"tr[data-name='{identity}']")
    assert rows_of(page)[0] == identity


def test_the_waterfall_is_the_traces(at: Deployment, pages: Pages) -> None:
    at.region.attempts = [split_attempt()]
    identity = at.run(prompt="hi").headers["x-request-id"]
    record = at.edge.traces.record(identity)
    assert record is not None
    page = pages.open(pages.link(path=f"/console/requests/{identity}"))
    page.wait_for_selector(".wf-row")
    page.click("[data-zoom=false]") if page.locator("[data-zoom=false]").count() else None
    names = page.locator(".wf-name").all_inner_texts()
    assert sorted(names) == sorted(each.name for each in record.spans)
    assert page.inner_text(".detail header code") == identity


def test_why_here_is_what_the_router_said(at: Deployment, pages: Pages) -> None:
    at.region.attempts = [split_attempt()]
    identity = at.run(prompt="hi").headers["x-request-id"]
    record = at.edge.traces.record(identity)
    assert record is not None
    [route] = [each for each in record.spans if each.name == "route"]
    page = pages.open(pages.link(path=f"/console/requests/{identity}"), theme="light")
    page.wait_for_selector(".why-row")
    names = page.locator(".why-name > span:not(.vh)").all_inner_texts()
    shown = [each.split(" ←")[0] for each in names]
    assert shown == [each.path for each in route.candidates]
    sums = [sum(each.terms.values()) for each in route.candidates]
    first, second = page.locator(".why-sum").all_inner_texts()
    assert in_ms(first) == pytest.approx(sums[0] * 1e3, rel=0.01)
    assert in_ms(second) == pytest.approx((sums[1] - sums[0]) * 1e3, rel=0.01)
    terms = {name for each in route.candidates for name in each.terms}
    for term in terms:
        page.click(f".term[data-term='{term}']")
        left = [{k: v for k, v in each.terms.items() if k != term} for each in route.candidates]
        best = min(range(len(left)), key=lambda place: sum(left[place].values()))
        told = page.inner_text(".verdict")
        assert ("still run here" in told) == (best == 0), told
        page.click(f".term[data-term='{term}']")
    shot(page, "why-here-light")


def in_ms(text: str) -> float:
    """Milliseconds of `+12 ms` or `1.20 s`."""
    value, unit = text.lstrip("+\u2212").split()
    return float(value) * (1000 if unit == "s" else 1)


def test_a_filter_leaves_what_it_says(at: Deployment, pages: Pages) -> None:
    good = at.run(prompt="hi").headers["x-request-id"]
    at.region.script = lambda submit: [Unavailable("gone")]
    bad = at.run(prompt="hi").headers["x-request-id"]
    page = pages.open(pages.link(path="/console/requests"))
    page.wait_for_selector(f"tr[data-name='{bad}']")
    for query, there, gone in (
        ("failed", bad, good), ("status:200", good, bad), ("status:5", bad, good),
        (f"model:bytes {good[:8]}", good, bad),
    ):  # fmt: skip
        page.fill("#filter", query)
        page.wait_for_selector(f"tr[data-name='{gone}']", state="detached")
        assert there in rows_of(page), query
    page.fill("#filter", "model:none")
    until(page, "document.querySelectorAll('.requests tbody tr').length === 0")


def test_what_is_read_does_not_move(at: Deployment, pages: Pages) -> None:
    first = at.run(prompt="hi").headers["x-request-id"]
    page = pages.open(pages.link(path="/console/requests"))
    page.wait_for_selector(f"tr[data-name='{first}']")  # its trace ends after its answer
    page.keyboard.press("Escape")
    page.keyboard.press(".")
    before = rows_of(page)[:IN_VIEW]
    identity = at.run(prompt="hi").headers["x-request-id"]
    page.wait_for_selector(".tally:has-text('1 new')")
    assert rows_of(page)[:IN_VIEW] == before
    page.keyboard.press(".")
    page.wait_for_selector(f"tr[data-name='{identity}']")


def test_rows_are_opened_by_keys(at: Deployment, pages: Pages) -> None:
    identity = at.run(prompt="hi").headers["x-request-id"]
    page = pages.open(pages.link(path="/console/requests"))
    page.wait_for_selector(f"tr[data-name='{identity}']")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector(".wf-row")
    assert page.evaluate("location.pathname") == f"/console/requests/{identity}"
    page.keyboard.press("Escape")
    page.wait_for_selector(".wf-row", state="detached")
    page.keyboard.press("g")
    page.keyboard.press("p")
    page.wait_for_selector("#run")


def test_the_row_that_keys_chose_is_in_view(at: Deployment, pages: Pages) -> None:
    ids = [at.run(prompt="hi").headers["x-request-id"] for _ in range(60)][::-1]
    page = pages.open(pages.link(path="/console/requests"))
    page.wait_for_selector(f"tr[data-name='{ids[0]}']")
    page.keyboard.press("Escape")
    for key, times, place in (("j", 51, 50), ("k", 45, 5)):
        for _ in range(times):
            page.keyboard.press(key)
        box = page.locator("tr.cursor").bounding_box()
        assert page.get_attribute("tr.cursor", "data-name") == ids[place]
        head, room = page.locator("thead").bounding_box(), page.viewport_size["height"]
        assert head["y"] + head["height"] <= box["y"] + 1
        assert box["y"] + box["height"] <= room
    page.keyboard.press("Enter")
    page.wait_for_selector(".wf-row")
    assert page.evaluate("location.pathname") == f"/console/requests/{ids[5]}"


def test_another_accounts_request_is_not_known(at: Deployment, pages: Pages) -> None:
    theirs, _ = at.edge.tokens.create(account_id="f" * 32, role="developer", now=0)
    path = f"/client/v4/accounts/{'f' * 32}/ai/run/{MODEL}"
    reply = at.client.post(
        path, json={"prompt": "hi"}, headers={"authorization": f"Bearer {theirs}"}
    )
    identity = reply.headers["x-request-id"]
    page = pages.open(pages.link(path=f"/console/requests/{identity}"))
    page.wait_for_selector("text=This request is not known here")
    assert identity not in rows_of(page)


def test_without_a_role_there_is_no_list(at: Deployment, pages: Pages) -> None:
    _, record = at.edge.tokens.create(account_id=ACCOUNT, now=0)
    page = pages.open(pages.link(record.id, path="/console/requests"))
    page.wait_for_selector("text=This login has no role")


def test_an_edge_that_says_nothing_is_named(
    at: Deployment, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skerry_edge.console.live.BEAT_SECONDS", 6.0)  # a page waits for 3
    monkeypatch.setattr("skerry_edge.console.live.SILENT_BEATS", 1)
    page = pages.open(pages.link(path="/console/requests"))
    page.wait_for_selector(".tally:has-text('kept')")
    page.wait_for_selector(".banner:not([hidden])")
    assert "No word from this edge for" in page.inner_text(".banner")
    page.wait_for_selector(".banner", state="hidden")


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("size", [WIDE, (820, 1180), NARROW])
def test_a_request_fits_into_the_window(
    at: Deployment, pages: Pages, size: tuple[int, int], theme: str
) -> None:
    at.region.attempts = [split_attempt()]
    identity = at.run(prompt="hi").headers["x-request-id"]
    page = pages.open(pages.link(path=f"/console/requests/{identity}"), size=size, theme=theme)
    page.wait_for_selector(".why-row")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    shot(page, f"request-{size[0]}-{theme}")
