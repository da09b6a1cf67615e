"""Prompts to warm up: the file, and what conversations with them begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry_cli.composition.prompts import PromptsError, read_prompts, tokenize
from skerry_edge.text.model import TextModel
from skerry_regions.models.catalog import Catalog
from skerry_regions.models.model_files import ModelFiles

SYSTEM = "You answer questions about tides, in one sentence, and cite the year of the almanac."


def test_a_file_of_prompts(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('["one", "two"]')
    assert read_prompts(tmp_path / "p.json") == ("one", "two")


@pytest.mark.parametrize("text", ["", "{}", '"one"', "[1]", "[]", '[""]', str(["x"] * 65)])
def test_what_is_no_list_of_prompts(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text.replace("'", '"'))
    with pytest.raises(PromptsError, match=str(path)):
        read_prompts(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(PromptsError, match="none: No such file"):
        read_prompts(tmp_path / "none")


@pytest.mark.model
def test_every_conversation_begins_so(default_model: ModelFiles) -> None:
    spec = next(iter(Catalog.load()))
    [ids] = tokenize(spec, default_model, [SYSTEM])
    text = TextModel(default_model, context_window=spec.context_window)
    for question in ("When is high water?", "42", "Über"):
        turns = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
        assert text.encode(text.render(turns))[: len(ids)] == ids
    assert SYSTEM in b"".join(map(text.token_bytes, ids)).decode()
