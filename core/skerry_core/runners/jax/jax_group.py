"""Runs a model with JAX over several processes, which its distributed runtime makes one mesh.

All run the same programs at the same time: the first rank, in the caller's process, sends the
others each step as it came, and what is done with KV. What crosses between devices is XLA's to
send; logits and blocks are whole on each of them, so that the first rank has all there is to know.

    first rank ── MEET, WARM_UP, STEP, EXPORT, ADMIT ──▶ each other rank
    first rank ◀── MEET, READY, WARM_UP ── each other rank
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import jax
import numpy as np
from numpy.typing import NDArray

from skerry_core.batch import ForwardBatch, StepResult
from skerry_core.blocks import blocks_for
from skerry_core.kv.canonical import kv_dtype
from skerry_core.models.weight_file import WeightFile
from skerry_core.ranks import RankChannel, Ranks
from skerry_core.runner import Progress, RunnerSetup
from skerry_core.runners.checks import check_admitted, check_batch, check_blocks
from skerry_core.runners.division import FAST_LINK, DivisionNeed, RankDevices
from skerry_core.runners.jax.jax_process import (
    MemoryOwner,
    devices_here,
    meet,
    memory_of,
    use_threads,
)
from skerry_core.runners.jax.jax_runner import JaxRunner, kv_format_of
from skerry_core.runners.other_ranks import OtherRanks
from skerry_core.runners.rank_messages import (
    MessageKind,
    RankMessage,
    encode,
    expect,
    step_message,
    step_of,
)


class JaxGroup(JaxRunner):
    """A `ModelRunner` over ranks, of which it is the first.

    Once a rank is lost every call raises RankLost, or what XLA says of it.
    """

    ranks: Ranks
    _others: OtherRanks

    @classmethod
    def from_setup(cls, setup: RunnerSetup) -> JaxRunner:
        """Open a model over devices of this process where it has as many, or else its part of this
        process, and have `setup.ranks` start the others. Raises as `open` does, and RankLost."""
        if devices_here() >= setup.parallel.num_ranks:
            return JaxRunner.from_setup(setup)
        with OtherRanks.started(setup) as others:
            others.meet()
            meet(f"{others.place}", 0, setup.parallel.num_ranks)
            group = super().from_setup(setup)
            assert isinstance(group, JaxGroup)
            others.wait_ready(group.numeric_build)
            group.ranks, group._others = others.ranks, others
            return group

    @staticmethod
    def survey(
        setup: RunnerSetup, devices: Sequence[MemoryOwner] | None = None
    ) -> tuple[DivisionNeed, RankDevices] | None:
        """Return what the model needs and what devices there are, those of this process unless
        named; None where there are not several. Reads no weights. Raises WeightsError.

        JAX does not say how fast links are, and sharing layers is the one way it divides a model:
        they count as fast.
        """
        if devices is None:
            if devices_here() < 2:
                return None
            use_threads(setup.threads)  # before JAX makes them
            devices = jax.local_devices()
        if len(devices) < 2:
            return None
        with WeightFile.open(setup.weights) as file:
            config = file.config
            weights = sum(prod(tensor.shape) for tensor in file.tensors.values())
        form = kv_format_of(config, "float32" if devices[0].platform == "cpu" else "bfloat16")
        blocks = setup.sizes.num_blocks or blocks_for(min(config.max_context, setup.max_context))
        weights *= kv_dtype(form.dtype).itemsize
        need = DivisionNeed.of(config, weights=weights, kv=blocks * form.block_bytes)
        memory = tuple(each.free for each in memory_of(devices))
        return need, RankDevices(memory=memory, link=FAST_LINK)

    @staticmethod
    def serve_rank(setup: RunnerSetup, channel: RankChannel) -> None:
        """Run rank `setup.rank`, not the first, until the channel ends. Raises as `open` does, and
        RankLost."""
        place = expect(RankMessage(channel.receive()), MessageKind.MEET).array(0, np.uint8)
        channel.send(*encode(MessageKind.MEET))
        meet(place.tobytes().decode(), setup.rank, setup.parallel.num_ranks)
        runner = JaxRunner.from_setup(setup)
        build = np.frombuffer(runner.numeric_build.encode(), np.uint8)
        channel.send(*encode(MessageKind.READY, [build]))
        while True:
            message = RankMessage(channel.receive())
            match message.kind:
                case MessageKind.STEP:
                    runner.launch(step_of(message))
                    runner.forget()
                case MessageKind.WARM_UP:
                    runner.warm_up(lambda what, share: None)
                    channel.send(*encode(MessageKind.WARM_UP))
                case MessageKind.EXPORT:
                    runner.export_block(int(message.array(0, np.int32)[0]))
                case _:
                    expect(message, MessageKind.ADMIT)
                    data = message.array(1, kv_dtype(runner.kv_format.dtype))
                    runner.admit_block(int(message.array(0, np.int32)[0]), data)

    def warm_up(self, progress: Progress) -> None:
        self._others.send(encode(MessageKind.WARM_UP))
        super().warm_up(progress)
        for channel in self._others.channels:
            expect(RankMessage(channel.receive()), MessageKind.WARM_UP)

    def launch(self, batch: ForwardBatch) -> None:
        check_batch(batch, self)
        self._others.send(step_message(batch))
        super().launch(batch)

    def collect(self) -> StepResult:
        result = super().collect()
        self._others.check()
        return result

    def export_block(self, block: int) -> NDArray[np.generic]:
        check_blocks([block], self.num_blocks)
        self._others.send(encode(MessageKind.EXPORT, [np.array([block], np.int32)]))
        return self._export(block)

    def admit_block(self, block: int, data: NDArray[np.generic]) -> None:
        check_admitted([block], data[None], self.num_blocks, self.kv_format)
        self._others.send(encode(MessageKind.ADMIT, [np.array([block], np.int32), data]))
        self._admit(block, data)

    def close(self) -> None:
        self._others.close()
        super().close()
