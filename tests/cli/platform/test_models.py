"""`skerry models` from the first listing to a served file of one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.regions.tiny_model import write_bpe

from skerry_cli import main
from skerry_regions.models.catalog import Catalog

DEFAULT = "@cf/huggingfacetb/smollm2-135m-instruct"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SKERRY_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return write_bpe(tmp_path / "tiny.gguf")


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["models", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_catalog_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    listed = [(model["id"], model["installed"]) for model in ask(capsys, "list")]
    assert listed == [(spec.id, False) for spec in Catalog.load()]
    assert listed[0] == (DEFAULT, False)
    assert main(["models", "list"]) == 0
    assert DEFAULT in capsys.readouterr().out


def test_a_file_of_ones_own_is_added_shown_and_checked(
    capsys: pytest.CaptureFixture[str], gguf: Path, home: Path
) -> None:
    added = ask(capsys, "add", str(gguf), "--as", "@cf/me/tiny")
    assert added["context_window"] == 64
    assert added["installed"]["weights"] == str(gguf)
    assert ask(capsys, "show", "@cf/me/tiny") == added
    assert ask(capsys, "pull", "@cf/me/tiny")[0]["weights"] == str(gguf)
    assert [each["id"] for each in ask(capsys, "verify")] == ["@cf/me/tiny"]
    assert main(["models", "show", "@cf/me/tiny", "--tokenizer-dir"]) == 0
    folder = Path(capsys.readouterr().out.strip())
    assert {"tokenizer.json", "tokenizer_config.json"} <= {each.name for each in folder.iterdir()}
    assert main(["models", "show", "@cf/me/tiny"]) == 0
    assert "context_window: 64" in capsys.readouterr().out


def test_a_model_is_served_under_another_name(
    capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    other = "@cf/meta/llama-3.1-8b-instruct"
    assert ask(capsys, "add", DEFAULT, "--as", other) == {"id": DEFAULT, "alias": other}
    assert Catalog.load(home).resolve(other).id == DEFAULT


def test_a_corrupt_file_is_named(capsys: pytest.CaptureFixture[str], gguf: Path) -> None:
    ask(capsys, "add", str(gguf), "--as", "@cf/me/tiny")
    with gguf.open("r+b") as file:
        file.truncate(100)
    assert main(["models", "verify"]) == 1
    assert f"{gguf} is truncated: 100 of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "@cf/nothing"], "No such model: @cf/nothing"),
        (["pull", "@cf/nothing"], "`skerry models list` shows all"),
        (["verify", DEFAULT], f"run `skerry models pull {DEFAULT}`"),
        (["show", DEFAULT, "--tokenizer-dir"], "is not installed"),
        (["add", "./no-such-file.gguf", "--as", "a"], "No such model"),
        (["add", DEFAULT, "--as", "bad name"], "aliases"),
    ],
)
def test_what_went_wrong_is_said(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["models", *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err


def test_a_broken_catalog_is_named(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    home.mkdir()
    (home / "catalog.yaml").write_text("models:\n  - id: a\n    oops: 1\n")
    assert main(["models", "list"]) == 1
    assert "catalog.yaml:3: models[0].oops: no such key" in capsys.readouterr().err


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["models", "add", "--help"])
    assert "example:\n  skerry models add ./my-model.gguf --as" in capsys.readouterr().out
