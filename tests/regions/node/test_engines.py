"""Engines by kind of runner: the same model behind each, and what is said when one is missing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from tests.core.runners.runner_suite import (
    CACHE,
    VOCAB,
    answers_of,
    check_greedy,
    random_tokens,
    reference,
    write_model,
)

from skerry_core.config import ConfigError
from skerry_core.engine.engine import Engine
from skerry_core.request import Request, SamplingParams
from skerry_regions.models.catalog import ModelFile, ModelSpec
from skerry_regions.models.model_files import ModelFiles, digest
from skerry_regions.node.engines import RunnerKind, open_engine
from skerry_regions.topology.spec import Pool


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), "llama")


def opened(weights: Path, runner: RunnerKind) -> Engine:
    spec = ModelSpec(
        id="@cf/tests/random",
        source="file:model.safetensors",
        files=(ModelFile(name="model.safetensors", sha256="0" * 64, size=1),),
        context_window=512,
    )
    files = ModelFiles(
        architecture="llama", context_length=512, vocab_size=VOCAB, token_form="byte_level",
        strips_space=False, chat_template=None, bos_id=None, eos_id=None, pad_id=None, unk_id=None,
        add_bos=False, stop_token_ids=(), tokenizer_digest=digest(b"tokenizer"),
        template_digest=digest(b""), weights_digest=digest(b"weights"), id=spec.id,
        directory=weights.parent, weights=weights, tokenizer=weights.with_name("tokenizer.json"),
    )  # fmt: skip
    return open_engine(
        spec, files, runner=runner, num_blocks=24, threads=1, cache_dir=CACHE,
        progress=lambda what, share: None,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["numba", "torch", "torch-deterministic", "jax"])
def test_every_kind_answers(weights: Path, kind: RunnerKind) -> None:
    engine = opened(weights, kind)
    assert engine.runner.batch_invariant == (kind in ("numba", "torch-deterministic"))
    request = Request(
        id="r", prompt_ids=tuple(random_tokens(70)), sampling=SamplingParams(max_tokens=5)
    )
    check_greedy(reference(weights), request, answers_of(engine, [request])["r"], atol=5e-3)
    engine.runner.close()


@pytest.mark.parametrize(
    ("kind", "library", "module"),
    [
        ("torch", "torch", "torch_gpu"),
        ("torch-deterministic", "torch", "torch_gpu"),
        ("jax", "jax", "jax_xla"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(
    weights: Path, monkeypatch: pytest.MonkeyPatch, kind: RunnerKind, library: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"skerry_core.runners.{module}")
    expected = rf"the {kind} runner needs {library}: pip install 'skerry\[{library}\]'"
    with pytest.raises(ConfigError, match=expected):
        opened(weights, kind)


def test_a_topology_may_name_every_kind() -> None:
    assert get_args(get_type_hints(Pool)["runner"]) == get_args(RunnerKind)
