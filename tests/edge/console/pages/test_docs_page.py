"""The docs in a browser: calls that are tried from them, and pages that are read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.edge.console.browsing import BROWSER, HUGE, NARROW, WIDE, Pages, said, shot, until
from tests.edge.scripted_region import MODEL, Hold
from tests.edge.support import PATIENCE, Deployment

pytestmark = BROWSER


def call(pages: Pages, id: str, *, logged_in: bool = True, **more: Any) -> Any:
    path = f"/console/docs/calls/{id}"
    page = pages.open(pages.link(path=path) if logged_in else pages.base + path, **more)
    page.wait_for_selector(".try .primary:enabled")
    return page


def test_a_call_is_tried_as_the_session(at: Deployment, pages: Pages) -> None:
    page = call(pages, "createChatCompletion")
    assert json.loads(page.input_value("[name=body]"))["model"] == MODEL
    page.click(".try .primary")
    page.wait_for_selector(".lane-note >> text=200, whole after")
    got = json.loads(page.inner_text(".try pre"))
    wanted = at.chat(messages=[{"role": "user", "content": "Hello"}]).json()
    assert got["choices"] == wanted["choices"]
    assert got["usage"] == wanted["usage"]


def test_a_stream_is_shown_as_it_comes(at: Deployment, pages: Pages) -> None:
    at.region.script = lambda submit: [list(b"One"), Hold()]
    page = call(pages, "createChatCompletion")
    page.check("[name=stream]")
    page.click(".try .primary")
    until(page, "document.querySelector('.try pre').innerText.includes('One')")
    assert page.inner_text(".try .primary") == "Stop"
    page.click(".try .primary")
    page.wait_for_selector("text=Stopped.")
    assert at.region.streams[-1].aborted.wait(PATIENCE)


def test_a_token_is_typed_in_and_kept_nowhere(at: Deployment, pages: Pages) -> None:
    page = call(pages, "listModels", logged_in=False)
    assert page.locator(".nav a").all_inner_texts() == ["Docs"]
    page.fill("#in-account_id", at.run_path.split("/")[4])
    page.click(".try .primary")
    page.wait_for_selector(".lane-note >> text=401, whole after")
    page.fill("#token", at.token)
    page.click(".try .primary")
    page.wait_for_selector(".lane-note >> text=200, whole after")
    assert MODEL in page.inner_text(".try pre")
    kept = page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie])")
    assert at.token.split("_", 2)[2] not in kept + page.content() + page.url
    page.click("text=Log in")
    page.wait_for_selector(".login #token")
    page.go_back()
    page.wait_for_selector(".try .primary:enabled")
    assert page.input_value("#token") == ""


def test_what_is_deleted_wants_a_confirmation(at: Deployment, pages: Pages) -> None:
    page = call(pages, "deleteFile")
    page.click(".try .primary")  # without an id: the browser says so
    assert not page.is_visible("dialog")
    page.fill("#in-id", "file_no")
    page.click(".try .primary")
    page.click("dialog .button")  # leave it
    page.click(".try .primary")
    page.click("dialog .danger")
    refused = at.client.delete(at.chat_path.replace("chat/completions", "files/file_no"))
    page.wait_for_selector(f".lane-note >> text={refused.status_code}, whole after")


def test_a_hostile_answer_stays_text(at: Deployment, pages: Pages) -> None:
    at.region.script = said("<img src=x onerror='window.pwned=1'>\u202eevil")
    page = call(pages, "createChatCompletion")
    page.click(".try .primary")
    page.wait_for_selector(".lane-note >> text=200, whole after")
    assert page.locator(".try pre *").count() == 0
    assert "⟨U+202E⟩evil" in page.inner_text(".try pre")
    assert page.evaluate("window.pwned") is None


def test_pages_are_read_without_scripts_and_without_a_login(pages: Pages) -> None:
    page = pages.open(f"{pages.base}/docs/console", java_script_enabled=False)
    page.wait_for_selector("h1 >> text=The console")
    page.click(".pages >> text=The Python SDK")
    page.wait_for_selector("h1 >> text=The Python SDK")
    page.click(".doc a[href*='/console/docs/']")
    assert "/console/docs/" in page.url


def test_keys_lead_to_a_section_and_back(at: Deployment, pages: Pages) -> None:
    page = pages.open()
    page.wait_for_selector("#run")
    page.keyboard.press("Escape")
    for key in "gd/":
        page.keyboard.press(key)
        page.wait_for_selector(
            {"g": "#run", "d": "main[data-page=docs]", "/": "#filter:focus"}[key]
        )
        page.wait_for_selector(".nav a")
    page.keyboard.type("sounder tick")
    page.keyboard.press("Enter")
    page.click(".doc a >> text=Playground")
    until(page, "location.hash === '#playground' && scrollY > 100")
    page.wait_for_selector("img[src$='playground-dark.webp']")
    until(page, "document.querySelector(\"img[src$='playground-dark.webp']\").naturalWidth > 0")
    page.click(".nav [data-page=requests]")
    page.wait_for_selector("main[data-page=requests]")
    page.go_back()
    page.wait_for_selector("main[data-page=docs] h1 >> text=The console")


@pytest.mark.parametrize("path", ["", "/console", "/calls/createMessage"])
@pytest.mark.parametrize("size", [WIDE, (820, 1180), NARROW, HUGE])
def test_it_fits_into_the_window(pages: Pages, size: tuple[int, int], path: str) -> None:
    page = pages.open(pages.link(path=f"/console/docs{path}"), size=size)
    page.wait_for_selector(".nav a")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    shot(page, f"docs{path.replace('/', '-')}-{size[0]}")
