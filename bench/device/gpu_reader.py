"""`python -m bench.device.gpu_reader`: the other process of a hand-over, which takes KV out of a
device's memory that `bench.gpu` has; see `other_process` for what the two say to each other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from threading import Timer

import torch

from skerry_core.config import KVFormat
from skerry_core.device_pages import DevicePage, DevicePages, PeerPages
from skerry_core.runners.torch.paged_kv import PagedKV

ROOT = Path(__file__).resolve().parents[2]
MOST_SECONDS = 90.0  # of its life
Block = tuple[int, int]  # where its page is, and its checksum


@contextmanager
def other_process(
    pages: DevicePages, kv_format: KVFormat, num_blocks: int, device: int
) -> Generator[Callable[[list[Block]], float]]:
    """A function that has the other process copy, check and admit blocks; the seconds it took.

    Each way goes a line of JSON: first what the memory is, then a list of blocks; the seconds.
    """
    path = os.pathsep.join([str(ROOT), str(ROOT / "core")])
    with subprocess.Popen(
        [sys.executable, "-m", "bench.device.gpu_reader"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, bufsize=1, cwd=ROOT, env={**os.environ, "PYTHONPATH": path},
    ) as process:  # fmt: skip
        killer = Timer(MOST_SECONDS, process.kill)
        killer.start()
        assert process.stdin is not None
        assert process.stdout is not None
        to, answers = process.stdin, process.stdout

        def seconds(blocks: list[Block]) -> float:
            print(json.dumps(blocks), file=to)
            told = answers.readline()
            if not told:
                raise RuntimeError("the other process ended")
            return float(told)

        memory = {
            "handle": pages.handle.hex(), "mark": pages.mark.hex(), "num_bytes": pages.num_bytes,
            "format": asdict(kv_format), "num_blocks": num_blocks, "device": device,
        }  # fmt: skip
        try:
            print(json.dumps(memory), file=to)
            yield seconds
        finally:
            to.close()  # which ends it
            process.wait()
            killer.cancel()


@torch.inference_mode()
def main() -> None:
    memory = json.loads(sys.stdin.readline())
    kv_format = KVFormat(**memory["format"])
    device = torch.device("cuda", memory["device"])
    dtype = getattr(torch, kv_format.dtype)
    kv = PagedKV(kv_format, memory["num_blocks"], device, dtype, has_triton=True, narrow=None)
    named = bytes.fromhex(memory["handle"]), bytes.fromhex(memory["mark"])
    peer = PeerPages(kv.open_pages(memory["num_blocks"]), *named, memory["num_bytes"])
    for line in sys.stdin:
        begun = time.perf_counter()
        offsets, checksums = zip(*json.loads(line), strict=True)
        copies = [peer.copy(offset) for offset in offsets]
        pages = [copy for copy in copies if isinstance(copy, DevicePage)]
        if len(pages) < len(copies):
            raise RuntimeError("no page is free")
        kv.admit_pages(range(len(pages)), pages, checksums)
        torch.cuda.synchronize(device)
        del copies, pages
        print(time.perf_counter() - begun, flush=True)
    peer.close()
    kv.close()


if __name__ == "__main__":
    main()
