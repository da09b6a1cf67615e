"""The docs in the console: the Markdown of `docs/`, and the reference of the API, tried from it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from tests.edge.support import PATIENCE, Deployment, deployed

from skerry_edge.console.assets import Assets
from skerry_edge.console.docs import Docs
from skerry_edge.limits import Limits
from skerry_regions.control.api.operations import openapi_document as control_document

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
NAMES = sorted(path.stem for path in DOCS.glob("*.md"))
FENCE = re.compile(r"^```\w*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


class Read(HTMLParser):
    """A page as a browser reads it: its elements, and the text of some."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("pre", "h1", "h2", "h3", "textarea"):
            self._open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        if self._open[-1:] == [tag]:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        for tag in self._open:
            self.texts[tag][-1] += data

    def all(self, attribute: str) -> list[str]:
        return [value for _, each in self.elements if (value := each.get(attribute)) is not None]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("docs"), Limits(), console="loopback") as edge:
        yield edge


@pytest.fixture(scope="module")
def reader(shown: Deployment) -> Iterator[httpx.Client]:
    """A browser that is not logged in."""
    base = f"http://127.0.0.1:{shown.port}"
    with httpx.Client(base_url=base, trust_env=False, timeout=PATIENCE) as client:
        yield client


def article(reader: httpx.Client, path: str) -> Read:
    reply = reader.get(path)
    assert reply.status_code == 200, path
    assert reply.headers["content-security-policy"].startswith("default-src 'self'; ")
    return Read(reply.text)


def test_the_docs_are_there_for_whoever_sees_the_console(
    reader: httpx.Client, edge: Deployment
) -> None:
    reply = reader.get("/docs/api")
    assert (reply.status_code, reply.headers["location"]) == (307, "/console/docs/api")
    contents = article(reader, reader.get("/docs").headers["location"])
    assert {f"/console/docs/{name}" for name in NAMES} <= set(contents.all("href"))
    base = f"http://127.0.0.1:{edge.port}"  # whose console is off
    for path in ("/docs", "/console/docs", "/console/docs/api"):
        assert httpx.get(f"{base}{path}").status_code == 401
        assert reader.get(path, headers={"host": "ai.example.com"}).status_code == 401
    for path in ("/console/docs/no", "/console/docs/%2e%2e/site.py", "/console/docs/api.md"):
        assert reader.get(path).status_code == 404


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_the_headings_and_the_code_of_its_file(reader: httpx.Client, name: str) -> None:
    source = (DOCS / f"{name}.md").read_text()
    page = article(reader, f"/console/docs/{name}")
    code = [each.strip("\n") for each in page.texts.get("pre", [])]
    assert code == [each.strip("\n") for each in FENCE.findall(source)]
    headings = HEADING.findall(FENCE.sub("", source))
    plain = [re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", each).replace("`", "") for each in headings]
    tops = sorted(text for tag in ("h1", "h2", "h3") for text in page.texts.get(tag, []))
    assert set(plain) <= set(tops)
    assert page.all("style") == []


def test_every_link_between_pages_leads_somewhere(reader: httpx.Client) -> None:
    pages = {f"/console/docs/{name}": article(reader, f"/console/docs/{name}") for name in NAMES}
    anchors = {path: set(page.all("id")) for path, page in pages.items()}
    followed, dangling = 0, list[tuple[str, str]]()
    for path, page in pages.items():
        for target in page.all("href"):
            whole = f"{path}{target}" if target.startswith("#") else target
            to, _, anchor = whole.partition("#")
            if to in anchors and anchor and not whole.endswith("#main"):
                followed += 1
                if anchor not in anchors[to]:
                    dangling.append((path, target))
    assert (followed > 200, dangling) == (True, [])
    written = {
        name
        for path in DOCS.glob("*.md")
        for name in re.findall(r"pictures/[\w-]+\.webp", path.read_text())
    }
    for name in written:
        assert reader.get(f"/console/docs/{name}").content == (DOCS / name).read_bytes()


def test_what_a_page_says_is_text(tmp_path: Path) -> None:
    (tmp_path / "bad.md").write_text(
        "# <b onclick=x>Bad</b>\n\n<script>pwned()</script>\n\n[run](javascript:pwned()) and "
        "[leave](data:text/html,x), [file](../etc/passwd), [home](https://example.com/)\n\n"
        "![seen](https://evil.example/?q=1)\n\n| a |\n|--:|\n| <img src=x onerror=y> |\n\n"
        "```sh\n</code></pre><script>pwned()</script>\n```\n"
    )
    page = Docs(Assets(), "edge", lambda: EMPTY, tmp_path).find("/console/docs/bad")
    made = Read(page.content.decode().partition("<article")[2].partition("</article>")[0])
    assert {tag for tag, _ in made.elements} <= {
        "h1", "p", "a", "span", "img", "div", "table", "thead", "tbody", "tr", "th", "td", "pre",
        "code",
    }  # fmt: skip
    assert made.all("href") == ["https://example.com/"]
    assert made.all("src") == []
    assert [
        name for _, each in made.elements for name in each if name.startswith(("on", "st"))
    ] == []
    assert made.texts["pre"] == ["</code></pre><script>pwned()</script>\n"]


EMPTY: dict[str, Any] = {"paths": {}, "components": {"schemas": {}}}


def test_sections_are_found_by_their_words(reader: httpx.Client) -> None:
    found = article(reader, "/console/docs?q=Sounder+TICK")
    assert "/console/docs/console#playground" in found.all("href")
    calls = article(reader, "/console/docs?q=chat+completions")
    assert "/console/docs/calls/createChatCompletion" in calls.all("href")
    none = reader.get("/console/docs", params={"q": '<script>"&amp;' + "x" * 200})
    assert "None has all of these words." in none.text
    assert "<script>&" not in none.text
    assert "x" * 101 not in none.text


def described(reader: httpx.Client) -> dict[str, Any]:
    told: dict[str, Any] = reader.get("/openapi.json").json()
    return told


def test_the_reference_has_every_call_of_the_api(reader: httpx.Client) -> None:
    told = described(reader)
    calls = [
        (path, method, each, item.get("parameters", []))
        for path, item in told["paths"].items()
        for method, each in item.items()
        if method != "parameters"
    ]
    assert len(calls) > 30
    for path, method, each, shared in calls:
        page = article(reader, f"/console/docs/calls/{each['operationId']}")
        taken = {(one["in"], one["name"]) for one in (*shared, *each.get("parameters", []))}
        named = {
            (place, str(one["name"])) for _, one in page.elements if (place := one.get("data-in"))
        }
        assert named - {("form", "purpose"), ("form", "file")} == (
            set() if "101" in each["responses"] else taken
        )
        assert [method.upper()] in (page.all("data-method"), [method.upper()])
        assert page.all("data-path") in ([path], [])
        [title] = page.texts["h1"]
        assert title == each["summary"]


def test_bodies_to_begin_with_are_what_the_schemas_want(reader: httpx.Client) -> None:
    told, checked = described(reader), 0
    for item in told["paths"].values():
        for method, each in item.items():
            content = (
                each.get("requestBody", {}).get("content", {}) if method != "parameters" else {}
            )
            if "application/json" not in content:
                continue
            page = article(reader, f"/console/docs/calls/{each['operationId']}")
            [body] = page.texts["textarea"]
            schema = content["application/json"]["schema"] | {"components": told["components"]}
            jsonschema.Draft202012Validator(schema).validate(json.loads(body))
            checked += 1
    assert checked > 8


def test_a_control_planes_reference_is_its_own() -> None:
    docs = Docs(Assets(), "control", control_document)
    page = docs.find("/console/docs/calls/createPool").content.decode()
    assert 'data-path="/control/v1/pools"' in page
    assert '<html lang="en" data-site="control">' in page
