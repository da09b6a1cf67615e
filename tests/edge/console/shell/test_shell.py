"""The console's pages: all that they name is served, and nothing else."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import httpx
import pytest
from tests.edge.console.shell.shell import POLICY
from tests.edge.support import Deployment

STATIC = Path(__file__).parents[4] / "edge" / "skerry_edge" / "console" / "static"


# --- pages ---------------------------------------------------------------------------------------


def test_the_root_leads_to_the_shell(browser: httpx.Client) -> None:
    reply = browser.get("/")
    assert (reply.status_code, reply.headers["location"]) == (307, "/console/")
    shell = browser.get("/console/")
    assert shell.headers["content-type"] == "text/html; charset=utf-8"
    assert browser.get("/console/requests/some-id").content == shell.content
    for page in (reply, shell):
        assert page.headers["content-security-policy"] == POLICY
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["referrer-policy"] == "no-referrer"


def test_all_that_the_shell_names_is_served_and_kept_for_ever(browser: httpx.Client) -> None:
    shell = browser.get("/console/").text
    named = re.findall(r'(?:src|href)="(/console/static/[^"]+)"', shell)
    assert {path.rsplit("/", 1)[1] for path in named} >= {"console.css", "main.js", "mark.svg"}
    for path in named:
        reply = browser.get(path)
        file = STATIC / path.split("/", 4)[4]
        assert reply.content == file.read_bytes()
        assert reply.headers["content-encoding"] == "gzip"
        assert "immutable" in reply.headers["cache-control"]
        known = browser.get(path, headers={"if-none-match": reply.headers["etag"]})
        assert (known.status_code, known.content) == (304, b"")
        plain = browser.get(path, headers={"accept-encoding": "gzip;q=0"})
        assert "content-encoding" not in plain.headers
        assert plain.content == reply.content


@pytest.mark.parametrize(
    "path",
    [
        "/console/static/../console.py",
        "/console/static/%2e%2e/console.py",
        "/console/static/0123456789ab/js/main.js",
        "/console/static//etc/passwd",
        "/console/static/..%2f..%2f..%2fetc%2fpasswd",
        "/console/static/index.html",
        "/consoles",
    ],
)
def test_no_path_leads_out_of_the_table(shown: Deployment, path: str) -> None:
    import socket

    with socket.create_connection(("127.0.0.1", shown.port)) as raw:
        raw.sendall(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".encode())
        head = b""
        while part := raw.recv(65536):
            head += part
    assert head.startswith(b"HTTP/1.1 404 "), head[:100]


def test_scripts_import_what_others_export() -> None:
    taken = re.compile(r"^import \{([^}]+)\} from \"([^\"]+)\";", re.MULTILINE)
    given = re.compile(r"^export (?:async )?(?:const|class|function\*?) ([\w$]+)", re.MULTILINE)
    scripts = sorted((STATIC / "js").rglob("*.js"))
    exports = {path: set(given.findall(path.read_text())) for path in scripts}
    for path in scripts:
        for names, source in taken.findall(path.read_text()):
            wanted = {each.split(" as ")[0].strip() for each in names.split(",")}
            assert wanted <= exports[(path.parent / source).resolve()], path.name


def test_scripts_have_no_way_to_parse_html_and_fit_the_budget() -> None:
    scripts = sorted((STATIC / "js").rglob("*.js"))
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|javascript:"
        r"|setAttribute\(\"(?:style|on)|https?://(?!www\.w3\.org/2000/svg)"
    )
    found = {path.name: forbidden.findall(path.read_text()) for path in scripts}
    assert {name: what for name, what in found.items() if what} == {}
    assert sum(len(gzip.compress(path.read_bytes(), 9)) for path in scripts) <= 60_000
    assert len(gzip.compress((STATIC / "console.css").read_bytes(), 9)) <= 12_000
