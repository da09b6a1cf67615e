"""The audit log of tokens: it keeps the last changes, within bounds, whoever writes it."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from skerry_edge.gate import token_audit
from skerry_edge.gate.token_audit import TokenAudit, newest_changes


def test_changes_are_kept_in_order_and_for_their_owner(tmp_path: Path) -> None:
    path = tmp_path / "home" / "token-audit.log"
    audit = TokenAudit(path, "user:ada")
    assert newest_changes(path, 10) == []
    audit.note("create", "0" * 16, {"role": "operator", "models": None})
    audit.note("delete", "1" * 16, denied="there is no such token")
    first, second = newest_changes(path, 10)
    assert (first.actor, first.action, first.id, first.changes, first.outcome) == (
        "user:ada", "create", "0" * 16, {"role": "operator"}, "granted",
    )  # fmt: skip
    assert (second.outcome, second.changes) == ("denied", {"denied": "there is no such token"})
    assert first.at <= second.at
    assert newest_changes(path, 1) == [second]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_it_stays_small_and_forgets_the_oldest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_audit, "MAX_FILE_BYTES", 1000)
    path = tmp_path / "token-audit.log"
    audit = TokenAudit(path, "user:ada")
    for number in range(100):
        audit.note("create", f"{number:016x}", denied="x" * 5000)
    files = sorted(tmp_path.glob("token-audit.log*"))
    assert len(files) == 5
    assert sum(file.stat().st_size for file in files) < 5 * 2000
    kept = [int(each.id, 16) for each in newest_changes(path, 1000)]
    assert kept == list(range(100 - len(kept), 100))
    assert [int(each.id, 16) for each in newest_changes(path, 3)] == [97, 98, 99]


def test_a_line_that_was_cut_costs_no_other(tmp_path: Path) -> None:
    path = tmp_path / "token-audit.log"
    audit = TokenAudit(path, "skerry")
    audit.note("create", "a" * 16)
    with path.open("ab") as file:
        file.write(b'{"at": 1.0, "act\n\xff\n[1]\n' + b"[" * 5000 + b"\n")
    audit.note("create", "b" * 16)
    assert [each.id[0] for each in newest_changes(path, 9)] == ["a", "b"]


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "token-audit.log"
    with ThreadPoolExecutor(8) as threads:
        for number in range(64):
            threads.submit(TokenAudit(path, f"user:{number}").note, "create", f"{number:016x}")
    assert {each.actor for each in newest_changes(path, 99)} == {f"user:{n}" for n in range(64)}
