"""Pulling from a hub: what is not there, a hub that is busy, offline, and blobs on the disk."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.regions.models.hub.pulls import ignore, known, pulled
from tests.regions.models.hub_server import GRANTED, NOT_GRANTED, LocalHub, Repo

from skerry_regions.models.blobs import Blobs
from skerry_regions.models.hub import HubClient
from skerry_regions.models.problems import PullError
from skerry_regions.models.pulling import wanted
from skerry_regions.models.sources import Hub


def test_a_gated_model_says_what_to_do(hub: LocalHub, tmp_path: Path) -> None:
    hub.repos["me/tiny-GGUF"].gated = True
    asked = wanted("hf:me/tiny-GGUF", known())
    with pytest.raises(PullError, match=r"is gated: accept its licence at .*HF_TOKEN"):
        pulled(hub, tmp_path / "a", asked)
    with pytest.raises(PullError, match="your token's account has no access") as caught:
        pulled(hub, tmp_path / "b", asked, token=NOT_GRANTED)
    assert NOT_GRANTED not in str(caught.value)
    found, _ = pulled(hub, tmp_path / "c", asked, token=GRANTED)
    assert found.spec.files[0].name == "tiny-Q4_K_M.gguf"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf:me/none", "has no repository me/none"),
        ("hf:me/tiny-GGUF@v9", "no such revision"),
        ("hf:me/tiny-GGUF:README.md", "neither a GGUF file nor safetensors"),
        ("hf:tiny", "must look like hf:owner/repository"),
        ("hf:../../etc", "must look like|no repository"),
    ],
)
def test_what_is_not_there_is_named(hub: LocalHub, tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(PullError, match=message):
        pulled(hub, tmp_path, wanted(name, known()))


def test_a_repository_whose_files_leave_their_folder_is_refused(
    hub: LocalHub, tmp_path: Path
) -> None:
    hub.repos["me/tiny-GGUF"].files["../../evil.gguf"] = b"x"
    with pytest.raises(PullError, match=r"a file of the name '\.\./\.\./evil\.gguf'"):
        pulled(hub, tmp_path, wanted("hf:me/tiny-GGUF", known()))


def test_files_in_parts_are_refused_by_name(hub: LocalHub, tmp_path: Path) -> None:
    hub.repos["me/big"] = Repo(
        {f"big-Q4_K_M-0000{part}-of-00002.gguf": b"x" * 20_000 for part in (1, 2)}
    )
    with pytest.raises(PullError, match="files in parts are not supported"):
        pulled(hub, tmp_path, wanted("hf:me/big", known()))


def test_a_hub_that_is_busy_is_asked_again(hub: LocalHub, tmp_path: Path) -> None:
    hub.hub_statuses = [429, 429]
    pulled(hub, tmp_path, wanted("hf:me/tiny-GGUF", known()))


def test_offline_asks_nothing(hub: LocalHub, tmp_path: Path) -> None:
    source = Hub(endpoints=(hub.endpoint,), offline=True)
    with HubClient(source) as client, pytest.raises(PullError, match="HF_HUB_OFFLINE is set"):
        client.repository("me/tiny-GGUF", "main")
    assert hub.asked == []


def test_where_the_hub_is_and_who_asks(tmp_path: Path) -> None:
    assert Hub.from_environ({}).endpoints == ("https://huggingface.co",)
    told = {"HF_ENDPOINT": "https://a, https://b", "HF_TOKEN": "hf_1", "HF_HUB_OFFLINE": "1"}
    found = Hub.from_environ(told)
    assert (found.endpoints, found.token) == (("https://a", "https://b"), "hf_1")
    assert found.offline
    assert "hf_1" not in repr(found)
    (tmp_path / "token").write_text("hf_2\n")
    assert Hub.from_environ({"HF_HOME": str(tmp_path)}).token == "hf_2"


# --- blobs


def test_no_room_on_the_disk_is_told_before_the_first_byte(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path, free_bytes=lambda path: 300 << 20)
    with pytest.raises(PullError, match=r"5\.0 GB are to be downloaded.*0\.3 GB free"):
        blobs.obtain("0" * 64, 5 * 10**9, "m.gguf", lambda path: pytest.fail("it began"), ignore)


def test_two_that_want_the_same_blob_fetch_it_once(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()
    fetched: list[str] = []
    said: list[str] = []

    def fetch(path: Path) -> None:
        fetched.append(path.name)
        begun.set()
        assert go_on.wait(60)
        path.write_bytes(b"blob")

    def tell(what: str, share: float) -> None:
        said.append(what)
        go_on.set()

    first = threading.Thread(target=lambda: Blobs(tmp_path).obtain("a" * 64, 4, "m", fetch, ignore))
    first.start()
    assert begun.wait(60)
    Blobs(tmp_path).obtain("a" * 64, 4, "m", fetch, tell)
    first.join()
    assert (fetched, said) == (["a" * 64], ["waiting for another download of m"])


def test_a_blob_that_no_model_links_to_is_swept(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    kept, loose = blobs.put(b"kept"), blobs.put(b"loose")
    assert blobs.link(kept, tmp_path / "linked")
    blobs.sweep(now=0.0)
    assert [path.name for path in (tmp_path / ".blobs").iterdir()] == [kept]
    assert not blobs.link(loose, tmp_path / "other")
