"""Models onto the engines and encoders of this process, and what one takes. Runs on a thread."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from skerry_cli.composition.opening import decoder_config, encoder_network
from skerry_cli.home.errors import CannotStart, raised_as
from skerry_cli.home.keys import link_credentials
from skerry_cli.home.machine import free_memory
from skerry_cli.home.memory import BLOCK_TOKENS, MemoryNeed, MemoryTooSmall, plan_blocks
from skerry_cli.home.parts import InstalledModel
from skerry_cli.home.state import Home
from skerry_cli.report import StartReporter
from skerry_core.config import ConfigError, KVFormat, ModelConfig
from skerry_core.engine.engine import Engine
from skerry_core.runners.packing.packed import packed_bytes
from skerry_core.weights.tensors import WeightsError
from skerry_regions.models.catalog import ModelSpec
from skerry_regions.models.model_files import ModelFiles
from skerry_regions.models.problems import LeftOut, UnfitSettings, UnsupportedModel, left_out_by
from skerry_regions.node.engines import FileTierOptions, open_encoder, open_engine
from skerry_regions.wire.link_auth import NO_CREDENTIALS

if TYPE_CHECKING:
    from skerry_cli.composition.compose import UpOptions
    from skerry_core.encoder.encoder import Encoder

NODE_ID = "node-1"
OVERHEAD = 300 << 20  # bytes of a process besides weights and KV
CONTEXTS = (2048, 8192, 32_768, 131_072)  # tokens; and the model's own
STREAMS = (1, 8, 32)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Models by id, their kernels compiled, and those that could not be opened."""

    engines: Mapping[str, Engine]
    encoders: Mapping[str, Encoder]
    left_out: Sequence[LeftOut]


def load_models(
    models: list[InstalledModel], options: UpOptions, home: Home, reporter: StartReporter
) -> Loaded:
    """Open every model; one that cannot be opened is left out. Encoders take memory when they are
    first used. Raises `CannotStart` where memory is too small."""
    engines: dict[str, Engine] = {}
    encoders: dict[str, Encoder] = {}
    left_out: list[LeftOut] = []
    configs: dict[str, ModelConfig] = {}
    for model in models:
        try:
            if model.spec.is_encoder:
                encoders[model.spec.id] = _encoder(model, options, home)
            else:
                configs[model.spec.id] = decoder_config(model.files.weights)
        except UnsupportedModel as error:
            left_out.append(left_out_by(model.spec.id, error))
    decoders = [model for model in models if model.spec.id in configs]
    tiers = _file_tiers(decoders, options, home)
    blocks = _plan(decoders, configs, options)
    said = options.memory or options.kv_tokens
    may_fill = not said and len(decoders) == 1  # a device's memory, if it has some of its own
    credentials = NO_CREDENTIALS
    if options.engine.stages:
        credentials = link_credentials(home, os.environ)
    for model, num_blocks in zip(decoders, blocks, strict=True):
        chosen = replace(
            options.engine, num_blocks=None if may_fill else num_blocks, host_blocks=num_blocks
        )
        try:
            engines[model.spec.id] = open_engine(
                model.spec,
                model.files,
                runner=options.runner,
                options=chosen,
                threads=options.threads,
                cache_dir=home.cache,
                file_tier=tiers.get(model.spec.id),
                floats=options.floats,
                credentials=credentials,
                progress=reporter.progress,
            )
        except WeightsError as error:
            left_out.append(left_out_by(model.spec.id, UnsupportedModel(str(error))))
        except ConfigError as error:  # not of the model's own: `decoder_config` has read it
            left_out.append(left_out_by(model.spec.id, UnfitSettings(str(error))))
    return Loaded(engines, encoders, left_out)


def _encoder(model: InstalledModel, options: UpOptions, home: Home) -> Encoder:
    with raised_as(UnsupportedModel, ConfigError, WeightsError):
        return open_encoder(model.spec, model.files, threads=options.threads, cache_dir=home.cache)


def _file_tiers(
    models: list[InstalledModel], options: UpOptions, home: Home
) -> dict[str, FileTierOptions]:
    """Return a file for each model; files of models that are no longer served are removed."""
    tiers = {}
    if options.file_tier:
        for model in models:
            name = hashlib.blake2b(model.spec.id.encode(), digest_size=8).hexdigest()
            path = home.cache / "kv" / f"{NODE_ID}-{name}"
            tiers[model.spec.id] = FileTierOptions(path, options.file_tier)
    kept = {tier.path for tier in tiers.values()}
    for path in (home.cache / "kv").glob(f"{NODE_ID}-*"):
        if path not in kept:
            path.unlink()
    return tiers


def _plan(
    models: list[InstalledModel], configs: dict[str, ModelConfig], options: UpOptions
) -> list[int]:
    needs = [
        MemoryNeed(
            model=model.spec.id,
            weights=model.spec.size,
            block=block_bytes(configs[model.spec.id]),
            context=model.spec.context_window,
        )
        for model in models
    ]
    with raised_as(CannotStart, MemoryTooSmall):
        return plan_blocks(
            needs, memory=options.memory, kv_tokens=options.kv_tokens, free=free_memory()
        )


def block_bytes(config: ModelConfig) -> int:
    """Return bytes of a block of KV in float16."""
    return KVFormat(
        num_layers=config.num_layers, num_kv_heads=config.num_kv_heads, head_dim=config.head_dim
    ).block_bytes


def footprint(spec: ModelSpec, files: ModelFiles) -> dict[str, Any]:
    """Return bytes on the `numba` runner, as it keeps weights by itself. Raises
    `UnsupportedModel`."""
    disk = {"disk": spec.size}
    if spec.is_encoder:
        return {**disk, "weights": encoder_network(files.weights).packed_bytes}
    weights = packed_bytes(files.weights)
    per_token = block_bytes(decoder_config(files.weights)) // BLOCK_TOKENS
    contexts = sorted({min(each, spec.context_window) for each in (*CONTEXTS, spec.context_window)})
    needed = [
        {
            "context": context,
            **{
                f"{streams} streams" if streams > 1 else "1 stream": weights
                + OVERHEAD
                + per_token * context * streams
                for streams in STREAMS
            },
        }
        for context in contexts
    ]
    free = free_memory()
    return {
        **disk,
        "weights": weights,
        "kv_per_token": per_token,
        "needed": needed,
        "free": free,
        "fits": None if free is None else weights + OVERHEAD + per_token * contexts[0] <= free,
    }
