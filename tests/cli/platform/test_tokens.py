"""`skerry tokens`, from the command line to the file that an edge reads."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path

import pytest

from skerry_cli import main
from skerry_cli.home.state import Config, Home, write_config
from skerry_edge.gate.tokens import TokenStore
from skerry_edge.money.caps import Budget, Caps

ACCOUNT = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("SKERRY_HOME", str(tmp_path / "home"))
    return Home(tmp_path / "home")


def create(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["tokens", "create", *arguments]) == 0
    return capsys.readouterr().out.strip()


def test_a_token_is_created_listed_and_revoked(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    token = create(capsys, "--account", ACCOUNT, "--name", "laptop", "--scope", "run")
    found = TokenStore(home.tokens).authenticate(token)
    assert found is not None
    assert (found.account_id, found.scopes) == (ACCOUNT, frozenset({"run"}))
    assert main(["tokens", "list"]) == 0
    listed = capsys.readouterr().out
    assert all(word in listed for word in (found.token_id, ACCOUNT, "run", "laptop"))
    assert token not in listed
    assert main(["tokens", "revoke", found.token_id]) == 0
    assert TokenStore(home.tokens).authenticate(token) is None
    assert main(["tokens", "revoke", found.token_id]) == 1
    assert f"no token {found.token_id}" in capsys.readouterr().err


def test_a_name_steers_no_terminal(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """A tenant's developer names tokens, and an operator lists them."""
    create(capsys, "--account", ACCOUNT, "--name", "a\x1b[2J\x1b]0;b\x07\r\nc\u202e")
    assert main(["tokens", "list"]) == 0
    listed = capsys.readouterr().out
    assert listed.splitlines()[1].endswith("a?[2J?]0;b???c?")
    assert len(listed.splitlines()) == 2


def test_the_account_is_the_platforms_unless_said(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    home.create()
    write_config(home, Config(url="http://127.0.0.1:1", account_id=ACCOUNT, api_token="x"))
    store = TokenStore(home.tokens)
    own, new = create(capsys), create(capsys, "--account", "new")
    accounts = [getattr(store.authenticate(token), "account_id", None) for token in (own, new)]
    assert accounts[0] == ACCOUNT
    assert accounts[1] not in (ACCOUNT, None)


def test_a_token_itself_may_be_given_to_revoke(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    token = create(capsys)
    assert main(["tokens", "revoke", token]) == 0
    assert TokenStore(home.tokens).records() == []


def test_mistakes_are_explained(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokens", "create", "--account", "mine"]) == 1
    assert "32 lower-case hex digits, got 'mine'" in capsys.readouterr().err
    home.create()
    home.tokens.write_text("{")
    for command in (["list"], ["create"], ["revoke", "0" * 16]):
        assert main(["tokens", *command]) == 1
        assert "tokens.json is not a token file" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["tokens", "create", "--scope", "root"])


def test_a_cap_is_set_shown_and_lifted(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    token = create(capsys, "--per-day", "0.5", "--per-month", "10")
    assert main(["tokens", "list"]) == 0
    listed = capsys.readouterr().out
    assert listed.rstrip().endswith("[US$ 0 of 0.5 this day] [US$ 0 of 10 this month]")
    assert main(["tokens", "cap", token, "--per-month", "3"]) == 0
    assert "may spend US$ 3 per month." in capsys.readouterr().out
    found = TokenStore(home.tokens).authenticate(token)
    assert found is not None
    assert found.budgets == (Budget(found.token_id, Caps(per_month=3.0)),)
    assert main(["tokens", "cap", token]) == 0
    assert "may spend without a cap" in capsys.readouterr().out
    assert main(["tokens", "cap", "0" * 16]) == 1
    assert "no token" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["tokens", "cap", token, "--per-day", "much"])


def test_each_change_is_in_the_audit_log(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """Granted and denied ones, by whom, and no secret."""
    token = create(capsys, "--account", ACCOUNT, "--name", "ci", "--per-day", "5")
    _, id, secret = token.split("_", 2)
    child = create(capsys, "--parent", token, "--per-day", "1")
    assert main(["tokens", "create", "--parent", token, "--per-day", "6", "--name", "more"]) == 1
    assert main(["tokens", "cap", id, "--per-month", "9"]) == 0
    assert main(["tokens", "rotate", id]) == 0
    rotated = capsys.readouterr().out.strip()
    assert main(["tokens", "revoke", id]) == 0
    assert main(["tokens", "revoke", token]) == 1
    assert main(["tokens", "rotate", f"x{secret}"]) == 1
    capsys.readouterr()
    assert main(["audit", "--json"]) == 0
    captured = capsys.readouterr()
    assert "Only changes made with `skerry tokens`: no control plane has run here" in captured.err
    entries = json.loads(captured.out)
    user = pwd.getpwuid(os.getuid()).pw_name
    assert {each["actor"] for each in entries} == {f"user:{user}"}
    assert [(each["action"], each["id"], each["outcome"]) for each in entries] == [
        ("create", id, "granted"),
        ("create", child.split("_")[1], "granted"),
        ("create", id, "denied"),
        ("update", id, "granted"),
        ("rotate", id, "granted"),
        ("delete", id, "granted"),
        ("delete", id, "denied"),
        ("rotate", "", "denied"),
    ]
    assert entries[1]["changes"]["parent"] == id
    assert "may spend US$ 5 per day" in entries[2]["changes"]["denied"]
    assert entries[2]["changes"]["name"] == "more"
    assert entries[5]["changes"] == {"children": 1}
    log = home.token_audit.read_text()
    for each in (token, child, rotated):
        assert each.split("_", 2)[2] not in log
    assert main(["audit", "--limit", "3"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[3:5] for line in shown[1:]] == [
        ["granted", "delete"], ["denied", "delete"], ["denied", "rotate"],
    ]  # fmt: skip


def test_a_change_stands_without_its_audit_line(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    home.token_audit.mkdir(parents=True)
    assert main(["tokens", "create"]) == 0
    assert "token-audit.log cannot be written" in capsys.readouterr().err
    assert len(TokenStore(home.tokens).records()) == 1
