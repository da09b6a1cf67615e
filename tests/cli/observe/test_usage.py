"""`skerry usage` over journals of a home, in each form."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from skerry_cli import main
from skerry_edge.ledger.usage_journal import UsageJournal
from skerry_edge.ledger.usage_tables import Amount
from skerry_regions.models.catalog import Price

TENANT = "0" * 32


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose edges in two zones served a request each."""
    monkeypatch.setenv("SKERRY_HOME", str(tmp_path))
    for path, tokens in (("usage.db", 10), ("zones/eu/usage.db", 20)):
        serve(tmp_path / path, tokens)
    return tmp_path


def serve(path: Path, tokens: int) -> None:
    journal = UsageJournal(path, edge="edge-1")
    entry = journal.admit(
        f"r{tokens}", tenant=TENANT, token="k", model="@cf/a/b", prompt_tokens=5,
        price=Price(output=1e6),
    )  # fmt: skip
    entry.settle("completed", Amount(prompt_tokens=5, output_tokens=tokens, decode_seconds=0.25))
    journal.close()


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["usage", *arguments]) == 0
    return capsys.readouterr().out


def test_a_table_of_all_zones(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heading, line = said(capsys).splitlines()
    assert heading.split()[:2] == ["MODEL", "REQUESTS"]
    assert line.split() == [
        "@cf/a/b",
        "2",
        "0",
        "0",
        "10",
        "0",
        "0",
        "30",
        "0.0",
        "0.5",
        "30.000000",
    ]


def test_csv_and_json(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [row] = csv.DictReader(io.StringIO(said(capsys, "--by", "tenant,edge", "--format", "csv")))
    assert (row["tenant"], row["edge"], row["output_tokens"]) == (TENANT, "edge-1", "30")
    [line] = json.loads(said(capsys, "--by", "", "--format", "json"))
    assert (line["requests"], line["cost"]) == (2, 30.0)
    assert "tenant" not in line


def test_of_one_tenant_and_of_nobody(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(said(capsys, "--tenant", TENANT).splitlines()) == 2
    assert len(said(capsys, "--tenant", "f" * 32).splitlines()) == 1
    monkeypatch.setenv("SKERRY_HOME", str(home / "none"))
    for name in ("BASE_URL", "ACCOUNT_ID", "API_TOKEN"):
        monkeypatch.delenv(f"SKERRY_{name}", raising=False)
    assert main(["usage"]) == 1  # neither a journal nor a platform to ask
    assert "SKERRY_BASE_URL" in capsys.readouterr().err


def test_what_is_not_understood(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--by", "prompt"], ["--since", "soon"]):
        assert main(["usage", *wrong]) == 1
        assert "skerry: '" in capsys.readouterr().err
    for wrong in (["--node-hour", "0"], ["--nodes", "x"]):
        with pytest.raises(SystemExit):
            main(["usage", *wrong])


def test_against_another_home(
    home: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path_factory.mktemp("hybrid")
    serve(other / "usage.db", 30)
    assert main(["usage", "--against", str(other), "--nodes", "4", "--node-hour", "1.2"]) == 0
    shown = capsys.readouterr()
    assert "4 nodes for " in shown.out
    assert "an output token costs " in shown.out
    assert "not the same load: requests: 2 against 1" in shown.err


def test_a_file_that_is_no_journal(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "usage.db").write_bytes(b"nothing" * 1000)
    assert main(["usage"]) == 1
    assert "cannot be read" in capsys.readouterr().err
