"""Where the platform is: precedence, and that a token only goes to the platform that issued it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skerry._config import MAX_CONFIG_BYTES, Settings, resolve
from skerry.errors import NotConfigured

FILE = {"url": "http://127.0.0.1:8787", "account_id": "file-account", "api_token": "file-token"}
ENVIRON = {
    "SKERRY_BASE_URL": "https://env.example",
    "SKERRY_ACCOUNT_ID": "env-account",
    "SKERRY_API_TOKEN": "env-token",
}


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment whose SKERRY_HOME holds what `skerry up` wrote."""
    write(tmp_path, FILE)
    return {"SKERRY_HOME": str(tmp_path)}


def write(home: Path, content: Any) -> None:
    (home / "config.json").write_text(json.dumps(content))


def triple(settings: Settings) -> tuple[str, str, str]:
    return settings.base_url, settings.account_id, settings.api_token


def test_the_file_is_last(home: dict[str, str]) -> None:
    assert triple(resolve(environ=home)) == tuple(FILE.values())


def test_the_environment_before_the_file(home: dict[str, str]) -> None:
    assert triple(resolve(environ=home | ENVIRON)) == tuple(ENVIRON.values())


def test_arguments_before_the_environment(home: dict[str, str]) -> None:
    settings = resolve(
        base_url="http://arg:1", account_id="a", api_token="t", environ=home | ENVIRON
    )
    assert triple(settings) == ("http://arg:1", "a", "t")


def test_the_file_fills_up_what_is_missing(home: dict[str, str]) -> None:
    environ = home | {"SKERRY_API_TOKEN": "env-token", "SKERRY_ACCOUNT_ID": ""}
    assert triple(resolve(environ=environ)) == (FILE["url"], FILE["account_id"], "env-token")


@pytest.mark.parametrize("url", [FILE["url"], FILE["url"] + "/", FILE["url"] + "/client/v4/"])
def test_the_files_token_goes_to_the_files_url(home: dict[str, str], url: str) -> None:
    assert triple(resolve(base_url=url, environ=home)) == tuple(FILE.values())


def test_the_files_token_goes_nowhere_else(home: dict[str, str]) -> None:
    with pytest.raises(NotConfigured, match="No account_id and no api_token given"):
        resolve(base_url="http://elsewhere:8787", environ=home)
    with pytest.raises(NotConfigured, match="No account_id and no api_token given"):
        resolve(environ=home | {"SKERRY_BASE_URL": "http://127.0.0.1:8788"})


def test_nothing_anywhere_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NotConfigured, match=r"skerry up.*SKERRY_BASE_URL.*base_url"):
        resolve(environ={"SKERRY_HOME": str(tmp_path / "none")})


def test_the_default_home_is_in_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".skerry").mkdir()
    write(tmp_path / ".skerry", FILE)
    assert triple(resolve(environ={})) == tuple(FILE.values())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[" * 50_000, "not valid JSON"),
        (b"[]", "not hold a JSON object"),
        (b" " * (MAX_CONFIG_BYTES + 1), "larger than"),
        (b'{"url": "http://x", "account_id": 7, "api_token": null}', "No account_id and no api_t"),
    ],
)
def test_a_file_that_is_no_config(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(NotConfigured, match=message):
        resolve(environ={"SKERRY_HOME": str(tmp_path)})


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with pytest.raises(NotConfigured, match=r"Cannot read .*config\.json"):
        resolve(environ={"SKERRY_HOME": str(tmp_path)})


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:8787", "ftp://x", "http://", "http://x:99999", "http://x?y", "http://[::1", "x y"],
)
def test_what_is_no_base_url(url: str) -> None:
    with pytest.raises(NotConfigured, match="base_url must look like"):
        resolve(base_url=url, account_id="a", api_token="t", environ={})


@pytest.mark.parametrize("word", ["two words", "line\nbreak", "sn\u00f6", "a/b", "x" * 5000])
def test_what_cannot_stand_in_a_header(word: str) -> None:
    with pytest.raises(NotConfigured, match="api_token") as caught:
        resolve(base_url="http://x", account_id="a", api_token=word, environ={})
    assert word not in str(caught.value)


def test_a_token_is_stripped_and_never_shown() -> None:
    settings = resolve(base_url="http://x", account_id="a", api_token=" secret\n", environ={})
    assert settings.api_token == "secret"
    assert "secret" not in repr(settings)
    assert settings.account_url == "http://x/client/v4/accounts/a"


def test_the_environments_token_goes_to_the_environments_url_only(tmp_path: Path) -> None:
    home = {"SKERRY_HOME": str(tmp_path)}
    with pytest.raises(NotConfigured, match="SKERRY_API_TOKEN is sent to SKERRY_BASE_URL only"):
        resolve(base_url="http://elsewhere:1", environ=home | ENVIRON)
    same = f"{ENVIRON['SKERRY_BASE_URL']}/client/v4/"
    assert resolve(base_url=same, environ=home | ENVIRON).api_token == "env-token"
    given = resolve(base_url="http://elsewhere:1", api_token="given", environ=home | ENVIRON)
    assert given.api_token == "given"
    (tmp_path / "config.json").write_text(json.dumps(FILE))
    without_url = home | {"SKERRY_API_TOKEN": "env-token"}
    assert resolve(base_url=FILE["url"], environ=without_url).api_token == "env-token"
    assert resolve(environ=without_url).base_url == FILE["url"]
    with pytest.raises(NotConfigured, match="SKERRY_BASE_URL only"):
        resolve(base_url="http://elsewhere:1", environ=without_url)
