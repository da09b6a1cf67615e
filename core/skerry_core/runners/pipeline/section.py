"""One rank's part of a pipeline: what it opens, how fast it is, and what it does of each message.

    leader ── ECHO, PLAN, STEP, LOGITS, EXPORT, ADMIT ──▶ rank 1 ──▶ … ──▶ last rank
    leader ◀── PACE, READY, RESULT, … ◀── rank 1 ◀── … ◀── last rank

Messages go down from rank to rank, each of which adds its part; answers come up the same way, in
the order of what they answer. ECHO goes to the next rank alone, which sends it back.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from skerry_core.batch import Float32, ForwardBatch
from skerry_core.models.stages import stages_of
from skerry_core.ranks import Part, RankChannel, RankLost
from skerry_core.runner import RunnerSetup
from skerry_core.runners.numba_cpu import NumbaRunner
from skerry_core.runners.packing.packed_file import PackedFile
from skerry_core.runners.pipeline.opening import (
    RankPace,
    find_weights,
    measure_link,
    measure_speed,
    no_sampling,
    open_stage,
    pace_message,
    paces_of,
)
from skerry_core.runners.rank_messages import (
    MessageKind,
    RankMessage,
    encode,
    expect,
    hidden_of,
    result_message,
    step_message,
    step_of,
)


class Section:
    """A rank's stage and the way to the next rank, None of the last."""

    def __init__(self, runner: NumbaRunner, below: RankChannel | None) -> None:
        self.runner = runner
        self.below = below

    def export(self, blocks: Sequence[int]) -> NDArray[np.float16]:
        """Return this stage's layers of blocks, f16[blocks, layers, 2, heads, 64, dim]."""
        found = np.empty((len(blocks), *self.runner.kv_format.shape), np.float16)
        for index, block in enumerate(blocks):
            found[index] = self.runner.export_block(block)
        return found

    def admit(self, blocks: Sequence[int], data: NDArray[np.float16]) -> None:
        """Overwrite this stage's layers of blocks, the first of those in `data`; send the rest
        on."""
        own = self.runner.kv_format.num_layers
        for block, layers in zip(blocks, data, strict=True):
            self.runner.admit_block(block, layers[:own])
        if self.below is not None:
            numbers = np.asarray(blocks, np.int32)
            self.below.send(*encode(MessageKind.ADMIT, [numbers, data[:, own:]]))

    def step(self, batch: ForwardBatch, hidden: Float32 | None) -> None:
        """Run a step of a stage that is not last, and send it on."""
        assert self.below is not None
        samples_nothing = replace(
            batch, sample_tokens=batch.sample_tokens[:0], sampling=no_sampling()
        )
        self.runner.advance(samples_nothing, hidden)
        self.below.send(*step_message(batch, self.runner.hidden(batch.num_tokens)))

    def handle(self, message: RankMessage) -> list[Part] | None:
        """Do this rank's part of a message. Return the answer, of the last rank only."""
        match message.kind:
            case MessageKind.STEP:
                batch, hidden = step_of(message), hidden_of(message)
                if self.below is None:
                    return result_message(self.runner.advance(batch, hidden))
                self.step(batch, hidden)
                return None
            case MessageKind.ADMIT:
                data = message.array(1, np.float16)
                self.admit(message.array(0, np.int32).tolist(), data)
                return None
            case MessageKind.EXPORT:
                blocks = message.array(0, np.int32)
                before = [message.array(i, np.float16) for i in range(1, len(message))]
                answer = encode(MessageKind.EXPORT, [blocks, *before, self.export(blocks.tolist())])
            case MessageKind.LOGITS:
                is_last = self.below is None
                answer = encode(MessageKind.LOGITS, [self.runner.last_logits()] if is_last else [])
            case _:
                raise RankLost(f"{message.kind.name} came in place of work")
        if self.below is None:
            return answer
        self.below.send(*answer)
        return None


def serve_section(setup: RunnerSetup, above: RankChannel) -> None:
    """Run a rank that is not first, until `above` is closed. Raises what opening does, and
    RankLost."""
    with contextlib.ExitStack() as stack:
        below = None
        if setup.rank < setup.parallel.pipeline - 1:
            assert setup.ranks is not None
            below = setup.ranks.start(replace(setup, rank=setup.rank + 1))
            stack.callback(below.close)
        section = _opened(setup, above, below)
        stack.callback(section.runner.close)
        if below is not None:
            lifting = threading.Thread(target=_lift, args=(below, above), daemon=True)
            lifting.start()
        while True:
            answer = section.handle(RankMessage(above.receive()))
            if answer is not None:
                above.send(*answer)


def _opened(setup: RunnerSetup, above: RankChannel, below: RankChannel | None) -> Section:
    """Open this rank's stage, as large as the leader plans it; return once all below are ready."""
    file = find_weights(setup)
    above.send(*pace_message(*measured(setup, file, below)))
    while (message := RankMessage(above.receive())).kind is MessageKind.ECHO:
        above.send(*encode(MessageKind.ECHO, [message.array(0, np.float32)]))
    starts = expect(message, MessageKind.PLAN).array(0, np.int32)
    if below is not None:
        below.send(*encode(MessageKind.PLAN, [starts]))
    stage = stages_of(starts.tolist(), file.header.config.num_layers)[setup.rank]
    runner = open_stage(setup, stage, file)
    try:
        if below is not None:
            expect(RankMessage(below.receive()), MessageKind.READY)
        above.send(*encode(MessageKind.READY))
    except BaseException:
        runner.close()
        raise
    return Section(runner, below)


def measured(
    setup: RunnerSetup, file: PackedFile, below: RankChannel | None
) -> tuple[list[RankPace], str]:
    """Return the paces of this rank and of all below, and their numeric build. Raises what opening
    does, and RankLost."""
    speed, build = measure_speed(setup, file)
    if below is None:
        return [RankPace(speed)], build
    others = paces_of(RankMessage(below.receive()), build)  # once they have measured themselves
    sending, arriving = measure_link(below, file.header.config.hidden_size)
    return [RankPace(speed, sending, arriving), *others], build


def _lift(below: RankChannel, above: RankChannel) -> None:
    """Pass answers on until either end is gone, which ends the process by other ways."""
    with contextlib.suppress(RankLost):
        while True:
            above.send(*below.receive())
