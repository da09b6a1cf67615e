"""The store: installed whole or not at all, and never opened when a file is not the catalog's."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path

import msgspec
import pytest
from tests.regions.models.hub.pulls import ignore
from tests.regions.tiny_model import TEMPLATE, write_bpe

from skerry_regions.models.local_model import describe
from skerry_regions.models.model_files import ModelFiles
from skerry_regions.models.problems import (
    ModelCorrupt,
    ModelNotInstalled,
    UnsupportedModel,
)
from skerry_regions.models.store import ModelStore


def test_a_local_file_is_used_in_place(store: ModelStore, gguf: Path) -> None:
    spec = describe(gguf, "@cf/me/tiny")
    with pytest.raises(ModelNotInstalled, match="skerry models pull @cf/me/tiny"):
        store.open(spec)
    files = store.pull(spec, ignore)
    assert files == store.open(spec)
    assert files.weights == gguf
    assert files.tokenizer.parent == files.directory
    assert (files.architecture, files.context_length, files.vocab_size) == ("llama", 64, 100)
    assert (files.bos_id, files.eos_id, files.stop_token_ids) == (1, 0, (0,))
    assert files.chat_template == TEMPLATE
    assert store.is_installed(spec)


def test_another_file_of_the_same_size_is_refused(store: ModelStore, gguf: Path) -> None:
    spec = describe(gguf, "@cf/me/tiny")
    store.pull(spec, ignore)
    data = bytearray(gguf.read_bytes())
    data[-1] ^= 1
    gguf.write_bytes(data)
    os.utime(gguf, ns=(1, 1))
    with pytest.raises(ModelCorrupt, match=r"tiny\.gguf is corrupt: SHA-256"):
        store.open(spec)
    with pytest.raises(ModelCorrupt, match=r"tiny\.gguf is corrupt: SHA-256"):
        store.pull(spec, ignore)


def test_a_change_that_left_no_trace_is_found_by_verify(store: ModelStore, gguf: Path) -> None:
    spec = describe(gguf, "@cf/me/tiny")
    store.pull(spec, ignore)
    status = gguf.stat()
    data = bytearray(gguf.read_bytes())
    data[-1] ^= 1
    gguf.write_bytes(data)
    os.utime(gguf, ns=(status.st_atime_ns, status.st_mtime_ns))
    store.open(spec)
    with pytest.raises(ModelCorrupt, match="corrupt"):
        store.verify(spec)


def test_a_truncated_or_missing_file_is_refused_by_name(store: ModelStore, gguf: Path) -> None:
    spec = describe(gguf, "@cf/me/tiny")
    store.pull(spec, ignore)
    size = gguf.stat().st_size
    os.truncate(gguf, size - 10)
    with pytest.raises(ModelCorrupt, match=rf"tiny\.gguf is truncated: {size - 10:,} of {size:,}"):
        store.open(spec)
    gguf.unlink()
    with pytest.raises(ModelCorrupt, match=r"tiny\.gguf is missing"):
        store.open(spec)


def test_a_chat_template_of_the_catalog_takes_the_place_of_the_files(
    store: ModelStore, gguf: Path
) -> None:
    spec = describe(gguf, "@cf/me/tiny")
    assert store.pull(spec, ignore).chat_template == TEMPLATE
    own = msgspec.structs.replace(spec, chat_template="{{ messages[0].content }}")
    with pytest.raises(ModelNotInstalled, match="another chat template"):
        store.open(own)
    files = store.pull(own, ignore)
    assert files.chat_template == own.chat_template
    config = json.loads((files.directory / "tokenizer_config.json").read_text())
    assert config["chat_template"] == own.chat_template
    assert store.open(own).template_digest != store.pull(spec, ignore).template_digest


def test_an_untouched_file_is_hashed_once(store: ModelStore, gguf: Path) -> None:
    spec = describe(gguf, "@cf/me/tiny")
    store.pull(spec, ignore)
    steps: list[str] = []
    store.open(spec, lambda what, _share: steps.append(what))
    assert steps == []
    os.utime(gguf, ns=(1, 1))
    store.open(spec, lambda what, _share: steps.append(what))
    store.open(spec, lambda what, _share: steps.append(what))
    assert steps == ["checking tiny.gguf"]
    copy = gguf.with_suffix(".copy")  # the same bytes, size and time: another inode
    shutil.copy2(gguf, copy)
    os.replace(copy, gguf)
    store.open(spec, lambda what, _share: steps.append(what))
    store.open(spec, lambda what, _share: steps.append(what))
    assert steps == ["checking tiny.gguf"] * 2


def test_stamps_of_earlier_versions_are_made_again(store: ModelStore, gguf: Path) -> None:
    spec = describe(gguf, "@cf/me/tiny")
    verified = store.pull(spec, ignore).directory / "verified.json"
    stamps = json.loads(verified.read_bytes())
    del stamps["tiny.gguf"]["inode"]
    verified.write_text(json.dumps(stamps))
    steps: list[str] = []
    store.open(spec, lambda what, _share: steps.append(what))
    store.open(spec, lambda what, _share: steps.append(what))
    assert steps == ["checking tiny.gguf"]


@pytest.mark.parametrize("damage", ["tokenizer.json", "model.json"])
def test_damaged_metadata_is_refused_and_made_anew(
    store: ModelStore, gguf: Path, damage: str
) -> None:
    spec = describe(gguf, "@cf/me/tiny")
    files = store.pull(spec, ignore)
    (files.directory / damage).write_text("{")
    with pytest.raises(ModelCorrupt, match=damage):
        store.open(spec)
    assert store.pull(spec, ignore) == files


def test_a_catalog_that_names_other_files_needs_a_pull(store: ModelStore, gguf: Path) -> None:
    store.pull(describe(gguf, "@cf/me/tiny"), ignore)
    other = describe(write_bpe(gguf.parent / "other.gguf", llama__block_count=3), "@cf/me/tiny")
    with pytest.raises(ModelNotInstalled, match="other files"):
        store.open(other)
    assert store.pull(other, ignore).weights.name == "other.gguf"


def test_a_failed_pull_leaves_the_installed_model(store: ModelStore, gguf: Path) -> None:
    spec = describe(gguf, "@cf/me/tiny")
    files = store.pull(spec, ignore)
    strange = write_bpe(gguf.parent / "strange.gguf", pre="strange")
    with pytest.raises(UnsupportedModel, match="@cf/me/tiny: pre-tokenizer 'strange'"):
        store.pull(describe(strange, "@cf/me/tiny"), ignore)
    assert store.open(spec) == files


def test_one_pull_at_a_time(store: ModelStore, gguf: Path) -> None:
    spec = describe(gguf, "@cf/me/tiny")
    results: list[ModelFiles] = []
    steps: list[str] = []

    def second() -> None:
        results.append(store.pull(spec, lambda what, _share: steps.append(what)))

    thread = threading.Thread(target=second)
    waiting = threading.Event()

    def first_progress(what: str, _share: float) -> None:
        if not waiting.is_set():
            waiting.set()
            thread.start()
            while not steps:
                thread.join(0.01)

    results.append(store.pull(spec, first_progress))
    thread.join()
    assert results[0] == results[1]
    assert steps == ["waiting for another pull of this model"]
