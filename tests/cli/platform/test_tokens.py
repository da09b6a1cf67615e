"""`skerry tokens`, from the command line to the file that an edge reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry_cli import main
from skerry_cli.home.state import Config, Home, write_config
from skerry_edge.gate.principal import Budget, Caps
from skerry_edge.gate.tokens import TokenStore

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
