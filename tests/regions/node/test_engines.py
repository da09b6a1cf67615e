"""Engines by kind of runner: the same model behind each, and what is said when one is missing."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest
from bench.subjects.requests import Request, SamplingParams
from tests.core.runners.runner_suite import (
    CACHE,
    VOCAB,
    answers_of,
    check_greedy,
    random_tokens,
    reference,
    write_model,
)

from skerry.runners import RUNNERS, FloatsForm, KVForm, RunnerName
from skerry_core.batch import ForwardBatch, StepResult
from skerry_core.config import ConfigError, EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.runner import Progress
from skerry_core.runners.toy import ToyRunner
from skerry_regions.models.catalog import ModelFile, ModelSpec
from skerry_regions.models.model_files import ModelFiles, digest
from skerry_regions.node.engines import EngineOptions, open_engine


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), "llama")


def opened(
    weights: Path,
    runner: RunnerName,
    floats: FloatsForm | None = None,
    progress: Progress = lambda what, share: None,
    **said: Any,
) -> Engine:
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
    said.setdefault("num_blocks", 24)
    return open_engine(
        spec, files, runner=runner, options=EngineOptions(**said), threads=1,
        cache_dir=CACHE, floats=floats, progress=progress,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["numba", "torch", "torch-deterministic", "jax"])
def test_every_kind_answers(weights: Path, kind: RunnerName) -> None:
    engine = opened(weights, kind)
    assert engine.runner.batch_invariant == (kind in ("numba", "torch-deterministic"))
    request = Request(
        id="r", prompt_ids=tuple(random_tokens(70)), sampling=SamplingParams(max_tokens=5)
    )
    check_greedy(reference(weights), request, answers_of(engine, [request])["r"], atol=5e-3)
    engine.runner.close()


def test_what_floats_are_kept_in_is_part_of_the_build(weights: Path) -> None:
    builds = {}
    for floats in (None, *RUNNERS["numba"].floats):
        engine = opened(weights, "numba", floats)
        builds[floats] = engine.runner.numeric_build
        engine.runner.close()
    assert builds[None] == builds["q8_0"]
    assert len(set(builds.values())) == 4


def test_a_node_says_how_much_an_account_may_keep(weights: Path) -> None:
    """Of 24 blocks; the rest of a prompt lapses as any other does."""
    for pin_share, kept in ((None, 6), (0.125, 3), (0.0, 0)):
        engine = opened(weights, "toy", pin_share=pin_share)
        prompt = tuple(random_tokens(64 * 7))
        request = Request(
            id="r", prompt_ids=prompt, sampling=SamplingParams(max_tokens=1), tenant="t",
            pins=((len(prompt), 300.0),),
        )  # fmt: skip
        usage = answers_of(engine, [request])["r"].usage
        assert usage is not None
        assert usage.pinned is not None
        assert sum(usage.pinned.written) == 64 * kept
        engine.runner.close()
    with pytest.raises(ConfigError, match="pin_share must be from 0 to 1"):
        opened(weights, "toy", pin_share=1.5)


@pytest.mark.parametrize(
    "kind",
    [
        *("numba", "torch", "torch-deterministic", "toy"),
        pytest.param("jax", marks=pytest.mark.slow),  # it compiles for each of the sizes
    ],
)
def test_sizes_are_what_is_said_and_else_as_ever_in_a_hosts_memory(
    weights: Path, kind: RunnerName
) -> None:
    cases: list[tuple[dict[str, Any], tuple[int, int, int]]] = [
        ({"num_blocks": None}, (192, 512, 64)),
        ({"num_blocks": None, "host_blocks": 7}, (7, 512, 64)),
        ({"num_blocks": 5, "step_tokens": 96, "streams": 3}, (5, 96, 3)),
    ]
    for said, sizes in cases:
        runner = opened(weights, kind, **said).runner
        assert (runner.num_blocks, runner.max_step_tokens, runner.max_samples) == sizes
        runner.close()


class OverlappingToy(ToyRunner):
    steps_ahead, feeds = 1, True

    def launch(self, batch: ForwardBatch) -> None:
        raise NotImplementedError

    def collect(self) -> StepResult:
        raise NotImplementedError


def test_an_engine_is_of_its_runners_sizes_and_drafts_where_nothing_overlaps() -> None:
    plain = ToyRunner(num_blocks=24, max_step_tokens=8192, max_samples=256)
    overlapping = OverlappingToy(num_blocks=24)
    config = EngineOptions().config(plain)
    assert config == EngineConfig(max_running=256, max_step_tokens=8192)
    assert EngineOptions().config(ToyRunner(num_blocks=24)) == EngineConfig()
    assert EngineOptions().config(overlapping) == EngineConfig(max_draft_tokens=0)
    for runner in (plain, overlapping):
        assert EngineOptions(draft_tokens=3).config(runner).max_draft_tokens == 3
        assert EngineOptions(draft_tokens=0).config(runner).max_draft_tokens == 0


@pytest.mark.parametrize(
    ("kind", "floats", "kv", "message"),
    [
        ("torch", "q4_1", None, "--weights q4_1 is not of the torch runner, which has keep, int8"),
        ("jax", "int8", None, "--weights int8 is not of the jax runner, which has keep$"),
        ("numba", "fp8", None, "--weights fp8 is not of the numba runner, which has keep, q8_0"),
        ("numba", None, "fp8", "--kv fp8 is not of the numba runner, which has none"),
        ("torch", "int4", None, "a matrix in int4 needs Triton's kernels"),
        ("torch-deterministic", None, "fp8", "KV in fp8 needs Triton's kernels"),
    ],
)
def test_a_form_that_a_runner_lacks_is_refused(
    weights: Path, kind: RunnerName, floats: FloatsForm | None, kv: KVForm | None, message: str
) -> None:
    """Those of a GPU by Torch itself, where there is none."""
    with pytest.raises(ConfigError, match=message):
        opened(weights, kind, floats, kv=kv)


@pytest.mark.parametrize("kind", ["torch", "jax"])
def test_floats_are_kept(weights: Path, kind: RunnerName) -> None:
    opened(weights, kind, "keep").runner.close()


@pytest.mark.parametrize(
    ("kind", "library"),
    [("torch", "torch"), ("torch-deterministic", "torch"), ("jax", "jax")],
)
def test_a_missing_library_is_named_with_its_extra(
    weights: Path, monkeypatch: pytest.MonkeyPatch, kind: RunnerName, library: str
) -> None:
    module, _, name = RUNNERS[kind].opens.partition(":")
    assert hasattr(import_module(module), name)
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, module)
    expected = rf"the {kind} runner needs {library}: `pip install '\.\[{library}\]'"
    with pytest.raises(ConfigError, match=expected):
        opened(weights, kind)


def test_the_names_are_those_of_the_table() -> None:
    assert get_args(RunnerName) == tuple(RUNNERS)
