"""Runs a model with Torch: on a GPU where there is one, on the CPU everywhere else.

Which kernels run is decided by the device: our Triton kernels on CUDA (`triton_steps`), plain Torch
elsewhere (`torch_steps`). Weights, activations and the canonical KV share one dtype; sampling stays
on the device and chooses as `skerry_core.sampling` says.

By default matrix products choose their kernels by shape, so logits depend on the batch in their
last bits: `batch_invariant` is False. With `deterministic=True` the bits are the same alone and in
any batch, on machines with the same `numeric_build`, and a step is slower: on the CPU tokens run in
tiles of one fixed shape (`torch_invariant`), on CUDA products are our own, of one tile size.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import torch
from numpy.typing import NDArray

from skerry_core.batch import Float32, ForwardBatch, StepResult
from skerry_core.config import ConfigError, ModelConfig
from skerry_core.device_pages import DevicePage, DevicePages
from skerry_core.kernels.torch.decoder import DecoderWeights
from skerry_core.kernels.torch.quantized import Narrow
from skerry_core.kernels.torch.torch_penalties import fed_tokens
from skerry_core.kernels.torch.torch_sampling import Sampled, begin
from skerry_core.page_checksums import Checksums
from skerry_core.runner import (
    BlockMover,
    Progress,
    RunnerSetup,
    RunnerSizes,
)
from skerry_core.runners.checks import check_batch
from skerry_core.runners.torch.open_steps import Kernels, kernels_of, open_steps, processor
from skerry_core.runners.torch.opening import LoadedModel, TorchOptions, kv_format_of, load
from skerry_core.runners.torch.paged_kv import PagedKV
from skerry_core.runners.torch.rank_links import RankLinks

VERSION = 6  # of the arithmetic: part of the numeric build


class TorchRunner(BlockMover):
    """A `ModelRunner` on one Torch device, which on CUDA computes while the next step is prepared.

    Not for two threads at once.
    """

    feeds = True  # what a step makes stays on the device for the next

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        *,
        num_blocks: int,
        max_step_tokens: int = 512,
        max_samples: int = 64,
        threads: int = 2,
        deterministic: bool = False,
        formats: Sequence[str] = (),
        kernels: Kernels | None = None,
        narrow_kv: Narrow | None = None,
        links: RankLinks | None = None,
    ) -> None:
        """`formats` names the formats that the weights were stored in. `kernels` are the device's
        own unless named. With `narrow_kv` KV is kept in 8 bits (fp8: Ada or later). With `links`
        configuration and weights are a rank's, whose steps run together with those of the others.

        Raises ConfigError on a dtype that is no KV dtype, and on `deterministic` or `narrow_kv`
        where the device cannot keep it.
        """
        if threads < 1:
            raise ConfigError(f"threads must be at least 1, got {threads}")
        self._threads = threads
        _use_threads(threads)
        device, dtype = weights.final_norm.device, weights.final_norm.dtype
        kernels = kernels or kernels_of(device)
        self.model = config
        self.num_blocks = num_blocks
        self.max_step_tokens = max_step_tokens
        self.max_samples = max_samples
        self.batch_invariant = deterministic
        self.steps_ahead = 1 if device.type == "cuda" else 0
        self._dtype = dtype
        self.kv_format = kv_format_of(config, dtype)
        self._kv = PagedKV(
            self.kv_format, num_blocks, device, dtype, has_triton=kernels == "triton",
            narrow=narrow_kv,
        )  # fmt: skip
        opened = open_steps(
            config, weights, self._kv, kernels=kernels, is_invariant=deterministic,
            max_rows=min(max_samples, max_step_tokens), links=links,
        )  # fmt: skip
        self._steps, self._choose = opened.steps, opened.choose
        self._links = links
        self.is_last = links is None or links.shard.stage.is_last  # and not a stage before others
        about = [VERSION, torch.__version__, processor(device), dtype, *formats, *opened.build]
        if narrow_kv is not None:
            about.append(narrow_kv)
        if links is not None and links.shard.tensor_size > 1:  # another order of sums
            about.append(f"{links.shard.tensor_size} tensor-parallel ranks")
        self._logits = torch.empty(0, config.vocab_size)
        self._made = torch.empty(0, dtype=torch.long, device=device)  # by the step launched last
        self._under_way: deque[Sampled] = deque()
        digest = hashlib.blake2b(" ".join(map(str, about)).encode(), digest_size=8)
        self.numeric_build = f"torch-{digest.hexdigest()}"

    @classmethod
    def of(
        cls, loaded: LoadedModel, sizes: RunnerSizes, *, links: RankLinks | None = None,
        formats: Sequence[str] | None = None,
    ) -> TorchRunner:  # fmt: skip
        """Return a runner of a model that is loaded, or with `links` of a rank's part of it, whose
        `formats` are those of the whole. Raises ConfigError."""
        options = loaded.options
        return cls(
            loaded.config, loaded.weights, **asdict(sizes), threads=options.threads,
            deterministic=options.deterministic, kernels=options.kernels, links=links,
            formats=loaded.formats if formats is None else formats, narrow_kv=options.narrow_kv,
        )  # fmt: skip

    @classmethod
    def from_setup(cls, setup: RunnerSetup, *, deterministic: bool = False) -> TorchRunner:
        """Load a GGUF or safetensors model onto a device. Raises WeightsError or ConfigError.

        Sizes that are None are as a GPU has room for beside the weights; on a CPU `host_blocks`,
        512 and 64. The device is a GPU where there is one, and the dtype bfloat16 there, float32 on
        a CPU. `threads` is how many of the host's cores a step may use; Torch has one such number
        in a process, which each step sets. Matrices of 4 and 8 bits stay so where Triton's kernels
        run; with narrow `floats` those of floats become so too.
        """
        _use_threads(setup.threads)
        loaded = load(setup.weights, TorchOptions.from_setup(setup, deterministic=deterministic))
        return cls.of(loaded, loaded.fitted(setup.sizes))

    @torch.inference_mode()
    def warm_up(self, progress: Progress) -> None:
        self._steps.warm_up(progress)
        if self._choose is not None:
            device = self._kv.kv.device
            logits, floats = (torch.zeros(1, n, device=device) for n in (self.model.vocab_size, 1))
            ints, longs = (
                torch.zeros(1, dtype=t, device=device) for t in (torch.int32, torch.long)
            )
            style = floats[0]
            self._choose(logits, style, style, ints, style, longs, longs, ints, ints)

    def execute(self, batch: ForwardBatch) -> StepResult:
        self.launch(batch)
        return self.collect()

    @torch.inference_mode()
    def launch(self, batch: ForwardBatch) -> None:
        check_batch(batch, self)
        _use_threads(self._threads)
        links, arrived = self._links, None
        if links is not None:
            arrived = links.receive(batch.num_tokens, self.model.hidden_size, self._dtype)
        fed = fed_tokens(batch.sampling, self._made)  # the step may write its own there
        made, chosen = self._steps.run(batch, self._made, arrived)
        if links is not None and not self.is_last:
            links.send(made)
            return
        self._logits = made
        sampled = begin(made, batch.sampling, self._choose, chosen, fed)
        self._made = sampled.chosen
        self._under_way.append(sampled)

    def collect(self) -> StepResult:
        return self.take().result()

    def take(self) -> Sampled:
        """Return what the oldest step under way makes, without waiting for it."""
        return self._under_way.popleft()

    def last_logits(self) -> Float32:
        logits: Float32 = self._logits.float().cpu().numpy()
        return logits

    @torch.inference_mode()
    def export_blocks(self, blocks: Sequence[int]) -> tuple[NDArray[np.generic], Checksums | None]:
        """See `BlockMover`; all in one transfer."""
        return self._kv.export_blocks(blocks)

    @torch.inference_mode()
    def admit_blocks(
        self,
        blocks: Sequence[int],
        data: NDArray[np.generic],
        checksums: Checksums | None = None,
    ) -> None:
        """See `BlockMover`; all in one transfer."""
        self._kv.admit_blocks(blocks, data, checksums)

    def open_pages(self, count: int) -> DevicePages:
        """See `PageMover`."""
        return self._kv.open_pages(count)

    @torch.inference_mode()
    def export_pages(self, blocks: Sequence[int], pages: Sequence[DevicePage]) -> Checksums:
        """See `PageMover`; the device is waited for once."""
        return self._kv.export_pages(blocks, pages)

    @torch.inference_mode()
    def admit_pages(
        self, blocks: Sequence[int], pages: Sequence[DevicePage], checksums: Sequence[int]
    ) -> None:
        """See `PageMover`; the device is waited for once."""
        self._kv.admit_pages(blocks, pages, checksums)

    def close(self) -> None:
        self._kv.close()
        del self._steps, self._kv


def _use_threads(count: int) -> None:
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
