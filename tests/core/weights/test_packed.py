"""Packed weights are kept between starts in a file that is mapped, checked, and made again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import xxhash
from tests.core.weights.packed_folders import CONFIG, load

from skerry_core.config import RopeConfig
from skerry_core.runners.packing import packed as packed_module
from skerry_core.runners.packing import packed_file
from skerry_core.runners.packing.packed import load_packed, packed_bytes
from skerry_core.runners.packing.packed_file import damaged_packed
from skerry_core.weights import digests

Damage = Callable[[bytes], bytes]


@pytest.mark.parametrize(
    ("floats", "format_", "bits"),
    [("keep", "F32", 32), ("q8_0", "Q8_0", 8.5), ("q4_1", "Q4_1", 5), ("q4_0", "Q4_0", 4.5)],
)
def test_floats_are_kept_in_what_is_asked_for(
    folder: Path, floats: str, format_: str, bits: float
) -> None:
    packed = load_packed(
        folder,
        group_rows=16,
        floats=floats,
        cache_dir=folder.parent,
        progress=lambda what, share: None,
    )
    assert packed.all_formats == (format_,)
    matrices = sum(layout.num_bytes for layout in packed.layouts.values())
    names = packed.tensors.keys() - packed.layouts.keys()
    vectors = sum(packed.tensors[name].nbytes for name in names)
    assert packed_bytes(folder, floats=floats) == matrices + vectors
    elements = sum(each.num_rows * each.num_columns for each in packed.layouts.values())
    assert matrices * 8 / elements == pytest.approx(bits, rel=0.02)


def test_the_first_start_ends_as_the_later_ones_begin(folder: Path) -> None:
    first, was_packed = load(folder)
    second, was_packed_again = load(folder)
    assert was_packed
    assert not was_packed_again
    assert first.config == second.config == CONFIG
    assert first.tensors.keys() == second.tensors.keys()
    for packed in (first, second):
        assert not packed.mapped[0].flags.writeable  # mapped
        assert packed.mapped[0].ctypes.data % 64 == 0
    np.testing.assert_array_equal(first.mapped[0], second.mapped[0])


def test_packed_once_for_each_content(folder: Path) -> None:
    """The configuration is part of it."""
    load(folder)
    changed = json.loads((folder / "config.json").read_bytes()) | {"rope_theta": 7.0}
    (folder / "config.json").write_text(json.dumps(changed))
    packed, was_packed = load(folder)
    assert was_packed
    assert packed.config.layers[0].rope == RopeConfig(theta=7.0)
    assert len(list(folder.parent.glob("*.packed"))) == 2


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda whole: b"", id="empty"),
        pytest.param(lambda whole: whole[:-1], id="cut"),
        pytest.param(lambda whole: whole[:-1] + bytes([whole[-1] ^ 1]), id="another bit"),
        pytest.param(lambda whole: whole.replace(b'"layouts"', b'"layout5"'), id="another header"),
        pytest.param(lambda whole: whole[:8] + b"\xff" * 8 + whole[16:], id="endless header"),
    ],
)
def test_a_damaged_file_is_made_again(folder: Path, damage: Damage) -> None:
    sound, _ = load(folder)
    (path,) = folder.parent.glob("*.packed")
    whole = path.read_bytes()
    path.unlink()  # what is mapped stays as it is
    path.write_bytes(damage(whole))
    again, was_packed = load(folder)
    assert was_packed
    assert path.read_bytes() == whole
    np.testing.assert_array_equal(again.mapped[0], sound.mapped[0])


def settle(*files: Path) -> None:
    """Give files a time of change that is over."""
    for file in files:
        os.utime(file, ns=(1, 1))


def flip_last_bit(path: Path) -> None:
    """Change a file as a failing disk would: its size, time of change and inode stay."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        (last,) = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_start_reads_no_file_that_did_not_change(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the weights nor what was packed of them are hashed again."""
    settle(*folder.iterdir())
    first, _ = load(folder)
    hashed: list[int] = []

    class Counting:
        """xxhash's digest, which notes how many bytes it is given."""

        def __init__(self, data: bytes = b"") -> None:
            self._digest = xxhash.xxh3_128()
            self.update(data)

        def update(self, data: bytes) -> None:
            hashed.append(len(data))
            self._digest.update(data)

        def hexdigest(self) -> str:
            return self._digest.hexdigest()

    counting = SimpleNamespace(
        xxh3_128=Counting, xxh3_128_hexdigest=lambda data: Counting(data).hexdigest()
    )
    for module in (digests, packed_file, packed_module):
        monkeypatch.setattr(module, "xxhash", counting)
    second, was_packed = load(folder)
    assert not was_packed
    assert sum(hashed) < 200  # digests that are known, to name what is looked for
    np.testing.assert_array_equal(first.mapped[0], second.mapped[0])
    os.utime(folder / "model.safetensors", ns=(2, 2))
    _, was_packed = load(folder)
    assert not was_packed  # the same content
    assert sum(hashed) > (folder / "model.safetensors").stat().st_size


def test_weights_that_were_just_written_are_hashed_again(folder: Path) -> None:
    """They might change once more, and show the same time of change."""
    load(folder)
    flip_last_bit(folder / "model.safetensors")
    _, was_packed = load(folder)
    assert was_packed


def test_bits_that_changed_by_themselves_are_found_by_verify(folder: Path) -> None:
    settle(*folder.iterdir())
    load(folder)
    (path,) = folder.parent.glob("*.packed")
    assert damaged_packed(folder, folder.parent) == []
    flip_last_bit(path)
    _, was_packed = load(folder)
    assert not was_packed
    assert damaged_packed(folder, folder.parent) == [path]
    assert not path.exists()
    _, was_packed = load(folder)
    assert was_packed
    assert damaged_packed(folder, folder.parent) == []


@pytest.mark.parametrize("content", [b"", b"{", b'{"version": 2, "files": {"a": 1}}'])
def test_digests_that_cannot_be_read_are_made_again(folder: Path, content: bytes) -> None:
    settle(*folder.iterdir())
    load(folder)
    kept = folder.parent / "digests.json"
    whole = json.loads(kept.read_bytes())
    assert whole["version"] == 1
    assert len(whole["files"]) == 3  # weights, configuration, packed weights
    kept.write_bytes(content)
    _, was_packed = load(folder)
    assert not was_packed
    assert json.loads(kept.read_bytes()) == whole


def test_what_another_version_packed_is_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        for module in (packed_file, packed_module):
            patch.setattr(module, "VERSION", "1.0")
        header = packed_file.PackedHeader
        patch.setattr(packed_module, "PackedHeader", partial(header, version="1.0"))
        load(folder)
    (old,) = folder.parent.glob("*.packed")
    (folder.parent / "foreign.packed").write_bytes(b"not ours")
    _, was_packed = load(folder)
    assert was_packed
    assert not old.exists()
    assert len(list(folder.parent.glob("*.packed"))) == 2  # what is not ours stays
