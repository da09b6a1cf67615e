"""Packed weights are kept between starts in a file that is mapped, checked, and made again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.core.random_models import random_weights, write_safetensors

from skerry_core.config import ModelConfig
from skerry_core.runners.packed import PackedModel, load_packed

CONFIG = ModelConfig(
    architecture="llama",
    num_layers=1,
    hidden_size=128,
    intermediate_size=128,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    vocab_size=80,
    max_context=512,
    rope_theta=50_000.0,
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
    assert packed.config.rope_theta == 7.0
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
