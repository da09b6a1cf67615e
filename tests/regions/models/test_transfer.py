"""A large file over HTTP: whole and right, or not at all, whatever breaks on the way."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.regions.models.hub_server import LocalHub, Repo, serving

from skerry_regions.models.hub import HubClient
from skerry_regions.models.part_file import PartFile
from skerry_regions.models.problems import PullError
from skerry_regions.models.sources import Hub
from skerry_regions.models.transfer import Transfer

PIECE = 64 << 10
DATA = random.Random(0).randbytes(10 * PIECE + 1234)
SHA256 = hashlib.sha256(DATA).hexdigest()
NAME = "me/model"


@pytest.fixture
def hub() -> Iterator[LocalHub]:
    with serving(LocalHub({NAME: Repo({"model.gguf": DATA})})) as hub:
        yield hub


def fetch(
    hub: LocalHub, target: Path, *, sha256: str = SHA256, endpoints: tuple[str, ...] = ()
) -> list[str]:
    """Fetch DATA; what was said of it."""
    said: list[str] = []
    source = Hub(endpoints=endpoints or (hub.endpoint,), token="hf_granted")
    with HubClient(source, sleep=lambda seconds: None) as client:
        Transfer(client.client, piece=PIECE, sleep=lambda seconds: None).fetch(
            "model.gguf",
            len(DATA),
            sha256,
            lambda: client.locate(NAME, "main", "model.gguf"),
            target,
            lambda what, share: said.append(what),
        )
    return said


def test_it_comes_in_ranges_and_the_token_stays_at_the_hub(hub: LocalHub, tmp_path: Path) -> None:
    fetch(hub, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == DATA
    assert [path.name for path in tmp_path.iterdir()] == ["blob"]
    assert sorted(hub.ranges()) == sorted(
        f"bytes={start}-{min(start + PIECE, len(DATA)) - 1}" for start in range(0, len(DATA), PIECE)
    )
    assert {each.server for each in hub.asked if each.has_token} == {"hub"}


@pytest.mark.parametrize("cut", [1, 1000, PIECE - 1])
def test_a_connection_that_breaks_costs_the_rest_of_its_range_alone(
    hub: LocalHub, tmp_path: Path, cut: int
) -> None:
    hub.cut_after, hub.cuts = cut, 20
    fetch(hub, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == DATA
    assert hub.sent == len(DATA)  # nothing twice


def test_what_is_whole_is_not_asked_for_again(hub: LocalHub, tmp_path: Path) -> None:
    part = PartFile(tmp_path / "blob.part", len(DATA), PIECE)
    for number in (0, 3, 10):
        start, end = part.bounds(number)
        part.write(start, DATA[start:end])
        part.seal(number)
    part.write(PIECE, b"under way when the process was killed")
    part.close()
    journal = tmp_path / "blob.part.journal"
    journal.write_bytes(journal.read_bytes() + b'{"number":5,"dig')  # a line half written
    fetch(hub, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == DATA
    assert hub.sent == len(DATA) - 2 * PIECE - 1234


@pytest.mark.parametrize("damage", ["piece", "journal", "other size"])
def test_what_changed_on_disk_is_fetched_again(hub: LocalHub, tmp_path: Path, damage: str) -> None:
    path, journal = tmp_path / "blob.part", tmp_path / "blob.part.journal"
    part = PartFile(path, len(DATA) + (damage == "other size"), PIECE)
    part.write(0, DATA[:PIECE])
    part.seal(0)
    part.close()
    if damage == "piece":
        path.write_bytes(bytes([DATA[0] ^ 1]) + path.read_bytes()[1:])
    elif damage == "journal":
        journal.write_bytes(b"\x00" * 50)
    fetch(hub, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == DATA
    assert hub.sent == len(DATA)


def test_a_corrupt_part_is_found_and_fetched_again(hub: LocalHub, tmp_path: Path) -> None:
    hub.corrupt = 1
    said = fetch(hub, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == DATA
    assert "model.gguf arrived corrupt: downloading it again" in said


def test_a_file_that_stays_corrupt_is_refused_and_nothing_is_kept(
    hub: LocalHub, tmp_path: Path
) -> None:
    hub.corrupt = 1000
    with pytest.raises(PullError, match=r"model\.gguf: arrived corrupt twice"):
        fetch(hub, tmp_path / "blob")
    assert list(tmp_path.iterdir()) == []


def test_a_server_without_ranges(hub: LocalHub, tmp_path: Path) -> None:
    hub.knows_ranges = False
    hub.cut_after, hub.cuts = 100_000, 2
    fetch(hub, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == DATA


def test_a_link_that_expires_is_asked_for_again(hub: LocalHub, tmp_path: Path) -> None:
    hub.link_uses = 3
    fetch(hub, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == DATA
    assert hub.sent == len(DATA)
    assert sum(each.server == "hub" for each in hub.asked) > 2


def test_a_file_that_changes_between_two_parts_is_not_mixed(hub: LocalHub, tmp_path: Path) -> None:
    hub.etag_changes = ['"one"', '"two"', '"two"']
    fetch(hub, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == DATA


def test_weak_etags_promise_nothing(hub: LocalHub, tmp_path: Path) -> None:
    hub.weak_etags = True
    fetch(hub, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == DATA
    assert hub.sent == len(DATA)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_that_is_busy_is_asked_again(hub: LocalHub, tmp_path: Path, status: int) -> None:
    hub.cdn_statuses = [status] * 4
    fetch(hub, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == DATA


def test_a_server_that_does_not_recover_keeps_what_arrived(hub: LocalHub, tmp_path: Path) -> None:
    fetch_first = PartFile(tmp_path / "blob.part", len(DATA), PIECE)
    fetch_first.write(0, DATA[:PIECE])
    fetch_first.seal(0)
    fetch_first.close()
    hub.cdn_statuses = [503] * 100
    with pytest.raises(PullError, match=r"HTTP 503.*What arrived is kept") as caught:
        fetch(hub, tmp_path / "blob")
    assert "signature" not in str(caught.value)
    hub.cdn_statuses = []
    fetch(hub, tmp_path / "blob")
    assert hub.sent == len(DATA) - PIECE


def test_a_file_of_another_size_is_refused(hub: LocalHub, tmp_path: Path) -> None:
    hub.repos[NAME].files["model.gguf"] = DATA + b"more"
    with pytest.raises(PullError, match="another one than is stated"):
        fetch(hub, tmp_path / "blob")


def test_a_mirror_takes_the_place_of_a_hub_that_is_down(hub: LocalHub, tmp_path: Path) -> None:
    with httpx.Client() as probe, pytest.raises(httpx.ConnectError):
        probe.get("http://127.0.0.1:1")
    fetch(hub, tmp_path / "blob", endpoints=("http://127.0.0.1:1", hub.endpoint))
    assert (tmp_path / "blob").read_bytes() == DATA
