"""Engines by kind of runner. Each kind's libraries are imported when it is requested."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from skerry.runners import MAX_RANKS, RUNNERS, FloatsForm, KVForm, RunnerName
from skerry_core.config import ConfigError, EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.engine.second_tier import open_file
from skerry_core.kv.file_tier import FileTier
from skerry_core.kv.mapped_file import FileTierError
from skerry_core.ranks import Parallel, RankLost, Ranks
from skerry_core.runner import (
    HOST_BLOCKS,
    ModelRunner,
    OverlappingRunner,
    Progress,
    RunnerSetup,
    WantedSizes,
)
from skerry_core.runners.division import DivisionNeed, RankDevices, divide
from skerry_core.weights.tensors import WeightsError
from skerry_regions.models.catalog import ModelSpec
from skerry_regions.models.model_files import ModelFiles
from skerry_regions.node.ranks.children import LocalRanks
from skerry_regions.node.ranks.order import StoredModel, runner_class
from skerry_regions.node.ranks.stages import StageRanks
from skerry_regions.spec_types import stages_mistake
from skerry_regions.wire.link_auth import NO_CREDENTIALS, LinkCredentials

if TYPE_CHECKING:
    from skerry_core.encoder.encoder import Encoder

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FileTierOptions:
    """Where evicted KV goes, and how many bytes of it at most."""

    path: Path
    capacity_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What an operator says of an engine; None: as a device with memory of its own has room for,
    and elsewhere as usual."""

    num_blocks: int | None = None  # of KV, 64 tokens each
    host_blocks: int = HOST_BLOCKS  # where `num_blocks` is None, in a host's memory
    streams: int | None = None  # that run at once
    step_tokens: int | None = None  # at most, computed in one step
    draft_tokens: int | None = None  # of a stream in a step; None: none where steps overlap
    pin_share: float | None = None  # of the blocks, that a tenant may pin; None: the engine's
    kv: KVForm | None = None  # what KV is kept in; None: as activations
    parallel: Parallel | None = None  # ranks; None: as the devices have room for
    stages: tuple[str, ...] = ()  # HOST:PORT of machines that serve the ranks after the first

    def config(self, runner: ModelRunner) -> EngineConfig:
        """Return the limits of an engine on a runner. Raises ConfigError."""
        usual = EngineConfig()
        overlaps = isinstance(runner, OverlappingRunner) and runner.steps_ahead > 0
        drafts = 0 if overlaps else usual.max_draft_tokens  # with drafts no step would
        return EngineConfig(
            max_running=runner.max_samples,
            max_step_tokens=runner.max_step_tokens,
            max_draft_tokens=drafts if self.draft_tokens is None else self.draft_tokens,
            pin_share=usual.pin_share if self.pin_share is None else self.pin_share,
        )


def open_engine(
    spec: ModelSpec,
    files: ModelFiles,
    *,
    runner: RunnerName,
    options: EngineOptions,
    threads: int,
    cache_dir: Path,
    file_tier: FileTierOptions | None = None,
    floats: FloatsForm | None = None,
    credentials: LinkCredentials = NO_CREDENTIALS,
    progress: Progress,
) -> Engine:
    """Return a model on a runner, its kernels compiled. Raises ConfigError or WeightsError.

    `floats` is in what a weight file's floats are kept; None: as the runner does by itself.
    `credentials` are for links to ranks on other machines.

    A file tier that cannot be used is a warning: it is a cache.
    """
    _check_forms(runner, "weights", floats, RUNNERS[runner].floats)
    _check_forms(runner, "kv", options.kv, RUNNERS[runner].kv)
    setup = RunnerSetup(
        weights=files.weights,
        vocab_size=files.vocab_size,
        max_context=spec.context_window,
        sizes=WantedSizes(
            num_blocks=options.num_blocks,
            max_step_tokens=options.step_tokens,
            max_samples=options.streams,
            host_blocks=options.host_blocks,
        ),
        threads=threads,
        cache_dir=cache_dir,
        progress=progress,
        floats=floats,
        kv=options.kv,
    )
    model = StoredModel(id=files.id, weights_digest=files.weights_digest, stages=options.stages)
    opened = _open_runner(runner, _divided(runner, setup, options.parallel, model, credentials))
    config = options.config(opened)
    opened.warm_up(progress)
    file = None
    if file_tier is not None:
        file = _open_file(opened, files.model_key, file_tier, config.pin_share)
    return Engine(opened, config, model_key=files.model_key, file_tier=file)


def open_encoder(spec: ModelSpec, files: ModelFiles, *, threads: int, cache_dir: Path) -> Encoder:
    """Return a model that embeds or classifies, on the CPU; the first request has its kernels
    compiled.

    Raises ConfigError, or WeightsError for files that are not what the catalog says.
    """
    from skerry_core.encoder.encoder import Encoder  # imports numba

    encoder = Encoder.open(files.weights, threads=threads, cache_dir=cache_dir)
    if spec.embedding is not None and spec.embedding.dimensions != encoder.width:
        raise WeightsError(f"{spec.id}: the catalog's dimensions are not {encoder.width}")
    if spec.classification is not None:
        stated, found = len(spec.classification.labels), encoder.num_classes
        if stated != found:
            raise WeightsError(f"{spec.id}: the catalog has {stated} labels, the model {found}")
    if spec.context_window > encoder.max_tokens:
        raise WeightsError(
            f"{spec.id}: the catalog's context window of {spec.context_window} tokens is more "
            f"than the {encoder.max_tokens} of the model"
        )
    return encoder


def _check_forms(runner: RunnerName, of: str, form: str | None, known: Sequence[str]) -> None:
    if form is not None and form not in known:
        has = f"has {', '.join(known)}" if known else "has none"
        raise ConfigError(f"--{of} {form} is not of the {runner} runner, which {has}")


def _divided(
    runner: RunnerName,
    setup: RunnerSetup,
    said: Parallel | None,
    model: StoredModel,
    credentials: LinkCredentials,
) -> RunnerSetup:
    """Return the setup over as many ranks as an operator said, or else as have room for the model.
    Raises ConfigError and WeightsError."""
    kind, why = RUNNERS[runner], "as was said"
    pipeline = 1 if said is None else said.pipeline
    if mistake := stages_mistake(model.stages, pipeline, runner):
        raise ConfigError(f"--stages: {mistake}")
    if said is None:
        found = _surveyed(runner, setup)
        if found is None:
            return setup
        need, there = found
        some = replace(there, memory=there.memory[:MAX_RANKS])
        division = divide(need, some, kind.axes)
        said, why = division.parallel, division.reason
        if said.num_ranks == 1:
            logger.info("the model is not divided: %s", why)
    axis = kind.lacking({"tensor": said.tensor, "pipeline": said.pipeline})
    if axis is not None:
        raise ConfigError(f"--{axis}: the {runner} runner has no {axis} parallelism")
    if said.num_ranks == 1:
        return setup
    form = f"tensor {said.tensor}, pipeline {said.pipeline}: {why}"
    ranks: Ranks = LocalRanks(runner, form)
    threads = max(1, setup.threads // said.num_ranks)
    if model.stages:
        form += f", with stages at {', '.join(model.stages)}"
        ranks = StageRanks(runner, form, model=model, credentials=credentials)
        threads = setup.threads  # others have those of their machines
    logger.info("the model is divided: %s", form)
    return replace(setup, threads=threads, parallel=said, ranks=ranks)


def _surveyed(runner: RunnerName, setup: RunnerSetup) -> tuple[DivisionNeed, RankDevices] | None:
    """Return what a model needs and what there is for it, where a kind of runner looks."""
    kind = RUNNERS[runner]
    with _extras_of(runner):
        opened = runner_class(kind.opens_divided) if kind.opens_divided else None
        survey = getattr(opened, "survey", None)
        return None if survey is None else survey(setup, **kind.options)


def _open_file(
    runner: ModelRunner, model_key: bytes, options: FileTierOptions, pin_share: float
) -> FileTier | None:
    try:
        return open_file(
            options.path,
            runner,
            model_key=model_key,
            capacity_bytes=options.capacity_bytes,
            pin_share=pin_share,
        )
    except FileTierError as error:
        logger.warning("evicted KV is not kept: %s", error)
        return None


def _open_runner(name: RunnerName, setup: RunnerSetup) -> ModelRunner:
    kind = RUNNERS[name]
    opens = kind.opens if setup.parallel.num_ranks == 1 else kind.opens_divided
    if not opens:
        raise ConfigError(f"the {name} runner runs on one rank for now")
    with _extras_of(name):
        try:
            runner: ModelRunner = runner_class(opens).from_setup(setup, **kind.options)
        except RankLost as error:
            raise ConfigError(str(error)) from None
    return runner


@contextmanager
def _extras_of(name: RunnerName) -> Generator[None]:
    """Raise ConfigError where a kind's libraries are not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the {name} runner needs {error.name}: `pip install '.[{RUNNERS[name].extra}]'` in "
            "Skerry's repository"
        ) from None
