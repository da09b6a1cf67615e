"""Two readers of GGUF headers, the engine's and the edge's: the same bounds, the same answers.

One corpus goes through both. Neither may import the other: the edge has no engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.weights.gguf_files import HOSTILE_HEADERS, SOUND_HEADERS
from tests.regions.tiny_model import write_bpe

from skerry_core.weights import gguf as engine
from skerry_core.weights.files import map_file
from skerry_core.weights.tensors import WeightsError
from skerry_regions.models.foreign import gguf_header as edge

BOUNDS = ("MAX_TENSORS", "MAX_PAIRS", "MAX_KEY", "MAX_STRING", "MAX_ARRAY")


def by_engine(path: Path) -> Mapping[str, Any]:
    return engine.read_gguf(map_file(path), str(path)).metadata


READERS: dict[str, tuple[Callable[[Path], Mapping[str, Any]], type[ValueError]]] = {
    "engine": (by_engine, WeightsError),
    "edge": (edge.read_metadata, edge.GGUFError),
}
every_reader = pytest.mark.parametrize("reader", READERS)


def same(left: object, right: object) -> bool:
    """Whether two readings are equal; the engine's arrays are tuples."""
    return left == (tuple(right) if isinstance(right, list) else right)


def test_the_bounds_are_the_same() -> None:
    assert [getattr(engine, name) for name in BOUNDS] == [getattr(edge, name) for name in BOUNDS]


@every_reader
@pytest.mark.parametrize("case", HOSTILE_HEADERS)
def test_a_hostile_header_is_refused(tmp_path: Path, reader: str, case: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(HOSTILE_HEADERS[case])
    read, error = READERS[reader]
    with pytest.raises(error, match=r"m\.gguf: "):
        read(path)


@every_reader
@pytest.mark.parametrize("case", SOUND_HEADERS)
def test_a_header_at_a_bound_is_read(tmp_path: Path, reader: str, case: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(SOUND_HEADERS[case])
    READERS[reader][0](path)


def test_both_read_what_the_gguf_package_wrote(tmp_path: Path) -> None:
    """The engine walks over the vocabulary, and keeps the rest."""
    path = write_bpe(tmp_path / "m.gguf")
    kept, whole = by_engine(path), edge.read_metadata(path)
    assert {"general.architecture", "llama.context_length"} < set(kept) < set(whole)
    assert all(same(kept[key], whole[key]) for key in kept)


def test_cut_or_damaged_both_refuse_or_both_read_the_same(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """But for what only one of them looks at: tensors, their alignment, and UTF-8 in arrays."""
    folder = tmp_path_factory.mktemp("gguf")
    data = write_bpe(folder / "a.gguf").read_bytes()

    def outcome(
        read: Callable[[Path], Mapping[str, Any]], error: type[ValueError]
    ) -> tuple[Mapping[str, Any], str]:
        try:
            return read(folder / "b.gguf"), ""
        except error as refused:
            return {}, str(refused)

    @given(st.integers(0, len(data)), st.integers(0, len(data) - 1), st.integers(1, 255))
    def check(size: int, position: int, mask: int) -> None:
        damaged = bytearray(data)
        damaged[position] ^= mask
        (folder / "b.gguf").write_bytes(damaged[:size])
        (whole, complaint), (kept, refusal) = (outcome(*READERS[who]) for who in ("edge", "engine"))
        if "not UTF-8" in complaint or "tensor" in refusal or "general.alignment" in refusal:
            return
        assert bool(complaint) == bool(refusal)
        assert all(same(kept[key], whole[key]) or kept[key] != kept[key] for key in kept)

    check()
