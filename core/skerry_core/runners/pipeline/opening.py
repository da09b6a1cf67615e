"""What a rank opens: its stage of the packed weights; how fast it is, and its link to the next;
where the leader cuts."""

from __future__ import annotations

import logging
import os
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from skerry_core.batch import ForwardBatch, SamplingBatch
from skerry_core.kernels.simd.targets import choose_target
from skerry_core.models.stages import ModelStage, stages_of
from skerry_core.models.weight_file import WeightFile
from skerry_core.ranks import Part, RankChannel, RankLost
from skerry_core.runner import RunnerSetup, WantedSizes
from skerry_core.runners.division import DivisionNeed, RankDevices
from skerry_core.runners.numba_cpu import NumbaRunner, kv_format_of
from skerry_core.runners.packing.packed import find_or_pack, packed_bytes
from skerry_core.runners.packing.packed_file import PackedFile, PackedHeader
from skerry_core.runners.rank_messages import MessageKind, RankMessage, encode, expect
from skerry_core.runners.stage_balance import ROWS, alike, cut, kv_bytes, share_read
from skerry_core.sampling import SAMPLE

logger = logging.getLogger(__name__)

OVERHEAD = 768 << 20  # bytes of address space that a rank has beside weights and KV
HOST_LINK = 2e9  # bytes a second between processes
LEADER_SECONDS = 300e-6  # of a step, that the first rank needs for its engine
_TRIES = 5  # of a step that is timed, and of a message; the best counts
_TRY_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class RankPace:
    """How fast a rank is: seconds for each byte of weights that a step reads; and for a step of
    ROWS rows to be sent on, of which the rank does nothing else, and until it is there. Nothing is
    sent on by the last."""

    speed: float
    sending: float = 0.0
    arriving: float = 0.0


def open_stage(setup: RunnerSetup, stage: ModelStage, file: PackedFile) -> NumbaRunner:
    """Open a stage of a file, its kernels linked. Raises as `NumbaRunner.open` does."""
    runner = NumbaRunner.from_setup(setup, stage=stage, file=file)
    runner.warm_up(setup.progress)
    return runner


def find_weights(setup: RunnerSetup) -> PackedFile:
    """Return the packed weights, which are packed where they are not yet."""
    return find_or_pack(
        setup.weights,
        group_rows=choose_target(None).rows,
        floats=setup.floats,
        cache_dir=setup.cache_dir,
        progress=setup.progress,
    )


def survey(setup: RunnerSetup) -> tuple[DivisionNeed, RankDevices] | None:
    """Return what a model needs and what each process may have, of so many as the machine has
    memory for; None where none is limited: several hold no more than one then. Raises WeightsError
    or ConfigError."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    with WeightFile.open(setup.weights) as file:
        config = file.config
    weights = packed_bytes(setup.weights, floats=setup.floats)
    kv = setup.sizes.on_host().num_blocks * kv_format_of(config).block_bytes
    need = DivisionNeed.of(config, weights=weights, kv=kv)
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    room = max(1, limit - OVERHEAD)
    ranks = min(config.num_layers, max(1, machine // limit))
    return need, RankDevices(memory=(room,) * ranks, link=HOST_LINK)


def measure_speed(setup: RunnerSetup, file: PackedFile) -> tuple[float, str]:
    """Return seconds for each byte of weights, by steps of a few rows through one layer, and the
    numeric build of the ranks."""
    header = file.header
    layers = header.config.num_layers
    first = layers // 2 - 1 if layers > 2 else 0  # neither end, where there is a layer between
    stage = ModelStage(first, first + 1, layers)
    sizes = WantedSizes(num_blocks=ROWS, max_step_tokens=ROWS, max_samples=1)
    runner = open_stage(replace(setup, sizes=sizes), stage, file)
    try:
        nothing = np.zeros(ROWS, np.int32)
        batch = ForwardBatch(
            token_ids=nothing,
            positions=nothing,
            query_start=np.arange(ROWS + 1, dtype=np.int32),
            block_tables=np.arange(ROWS, dtype=np.int32)[:, None],
            sample_tokens=nothing[:0],
            sampling=no_sampling(),
        )
        rows = None
        if not stage.is_first:
            shape = (ROWS, header.config.hidden_size)
            rows = np.random.default_rng(0).standard_normal(shape, np.float32)
        seconds = list[float]()
        while len(seconds) < _TRIES or sum(seconds) < _TRY_SECONDS:
            begun = time.perf_counter()
            runner.advance(batch, rows)
            seconds.append(time.perf_counter() - begun)
    finally:
        runner.close()
    names = stage.tensors(header.config, header.layouts)
    read = sum(header.layouts[n].num_bytes for own, n in names.items() if own.startswith("blk."))
    return min(seconds) / read, runner.numeric_build


def measure_link(below: RankChannel, hidden_size: int) -> tuple[float, float]:
    """Return the seconds that a step of a few rows takes to be sent to the next rank, and to be
    there, by messages of its size that come back. Raises RankLost."""
    rows = np.zeros((ROWS, hidden_size), np.float32)
    sent, back = list[float](), list[float]()
    for _ in range(_TRIES):
        begun = time.perf_counter()
        below.send(*encode(MessageKind.ECHO, [rows]))
        sent.append(time.perf_counter() - begun)
        expect(RankMessage(below.receive()), MessageKind.ECHO)
        back.append(time.perf_counter() - begun)
    return min(sent), min(back) / 2


def pace_message(paces: Sequence[RankPace], build: str) -> list[Part]:
    """Return the paces of ranks for the one before them, and the build that they have."""
    rows = [(pace.speed, pace.sending, pace.arriving) for pace in paces]
    return encode(MessageKind.PACE, [np.array(rows), np.frombuffer(build.encode(), np.uint8)])


def paces_of(message: RankMessage, build: str) -> list[RankPace]:
    """Return how fast the ranks below are. Raises RankLost, also where they have not this numeric
    build: their bits would be others."""
    rows = expect(message, MessageKind.PACE).array(0, np.float64)
    theirs = message.array(1, np.uint8).tobytes().decode("ascii", "replace")
    if theirs != build:
        raise RankLost(
            f"the next rank has another numeric build, {theirs} and not {build}: "
            "run the same version of Skerry on all machines of a pipeline"
        )
    if rows.ndim != 2 or rows.shape[1] != 3:
        raise RankLost(f"paces came as {list(rows.shape)}")
    return [RankPace(*map(float, row)) for row in rows]


def plan_stages(header: PackedHeader, paces: Sequence[RankPace]) -> list[ModelStage]:
    """Return stages that take about as long as each other, of ranks of these paces.

    What a step takes on its way counts for nobody: it is the same wherever the model is cut.
    """
    layers, head = step_bytes(header)
    # Little counts as nothing: the next start is to cut alike.
    fixed = [round(pace.sending, 4) for pace in paces]
    fixed[0] += LEADER_SECONDS
    speeds = [pace.speed for pace in paces]
    stages = stages_of(cut(layers, head, alike(speeds), fixed), header.config.num_layers)
    for rank, (stage, pace) in enumerate(zip(stages, paces, strict=True)):
        read = sum(layers[stage.first : stage.last]) + stage.is_last * head
        logger.info(
            "rank %d has layers %d to %d: %.2f GB/s measured, %.1f ms for a step of %d rows",
            rank, stage.first, stage.last - 1, 1e-9 / pace.speed, 1e3 * read * pace.speed, ROWS,
        )  # fmt: skip
        if not stage.is_last:
            logger.info(
                "rank %d sends such a step on in %.2f ms; it is there after %.2f ms",
                rank, 1e3 * pace.sending, 1e3 * pace.arriving,
            )  # fmt: skip
    return stages


def step_bytes(header: PackedHeader) -> tuple[list[float], float]:
    """Return the bytes that a step reads of each layer, its KV included, and of the head."""
    config = header.config
    sizes = {name: float(layout.num_bytes) for name, layout in header.layouts.items()}
    sizes |= {name: 4.0 * size for name, size in header.vector_sizes.items()}
    layers = [kv_bytes(config, index) for index in range(config.num_layers)]
    head = 0.0
    for name, size in sizes.items():
        if name.startswith("blk."):
            layers[int(name.split(".", 2)[1])] += size * share_read(config, name)
        elif "output" in name or config.tied_embeddings:
            head += size
    return layers, head


def no_sampling() -> SamplingBatch:
    """Return how nothing is sampled."""
    none, starts = np.zeros(0, np.int32), np.zeros(1, np.int32)
    return SamplingBatch(
        samples=np.zeros(0, SAMPLE), history_start=starts, history_ids=none, history_counts=none,
        bias_start=starts, bias_ids=none, bias_values=np.zeros(0, np.float32),
        allowed=np.zeros((0, 0), np.uint32),
    )  # fmt: skip
