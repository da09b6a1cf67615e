"""Packed weights are kept between starts in a file that is mapped, checked, and made again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.core.random_models import random_weights, write_safetensors

from skerry_core.config import LayerConfig, ModelConfig, RopeConfig
from skerry_core.runners.packed import PackedModel, load_packed, packed_bytes

CONFIG = ModelConfig(
    architecture="llama",
    layers=(LayerConfig(rope=RopeConfig(theta=50_000.0)),),
    hidden_size=128,
    intermediate_size=128,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    vocab_size=80,
    max_context=512,
)
Damage = Callable[[bytes], bytes]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's."""
    (tmp_path / "model").mkdir()
    return write_safetensors(tmp_path / "model", CONFIG, random_weights(CONFIG)).parent


def load(folder: Path) -> tuple[PackedModel, bool]:
    """A model's packed weights, and whether they had to be packed."""
    told: list[str] = []
    packed = load_packed(
        folder,
        group_rows=8,
        cache_dir=folder.parent,
        progress=lambda what, share: told.append(what),
    )
    return packed, bool(told)


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
    assert packed.formats == [format_]
    matrices = sum(layout.num_bytes for layout in packed.layouts.values())
    vectors = 4 * sum(packed.vector_sizes.values())
    assert packed_bytes(folder, floats=floats) == matrices + vectors
    elements = sum(each.num_rows * each.num_columns for each in packed.layouts.values())
    assert matrices * 8 / elements == pytest.approx(bits, rel=0.02)


def test_the_first_start_ends_as_the_later_ones_begin(folder: Path) -> None:
    first, was_packed = load(folder)
    second, was_packed_again = load(folder)
    assert was_packed
    assert not was_packed_again
    assert first.config == second.config == CONFIG
    assert first.offsets == second.offsets
    for packed in (first, second):
        assert not packed.data.flags.writeable  # mapped
        assert packed.data.ctypes.data % 64 == 0
    np.testing.assert_array_equal(first.data, second.data)


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
    np.testing.assert_array_equal(again.data, sound.data)
