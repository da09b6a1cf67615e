"""Pages of a device: read by another process, bounded, and free exactly when nobody holds them."""

from __future__ import annotations

import random
import secrets
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, repeat
from threading import Thread

import numpy as np
import pytest
from bench.subjects.requests import SamplingParams
from hypothesis import given
from hypothesis import strategies as st
from tests.core.engine.test_handover import VOCABULARY, oracle, request, run, toy_engine
from tests.core.host_device import DeviceToyRunner, HostDevice, HostDriver, bytes_at
from tests.core.kv.sane_pools import check_pool

from skerry_core.config import EngineConfig
from skerry_core.device_pages import FIRST_PAGE, HANDLE_BYTES, DevicePage, DevicePages, PeerPages
from skerry_core.engine.engine import Engine
from skerry_core.kernels.torch.cuda_memory import CudaDevice
from skerry_core.request import KVBlock

SIZE = 512


def content(number: int) -> bytes:
    return random.Random(number).randbytes(SIZE)


def filled(pages: DevicePages, number: int) -> DevicePage:
    (page,) = pages.take(1)
    bytes_at(page.address, len(page))[...] = np.frombuffer(content(number), np.uint8)
    return page


def peer_of(own: DevicePages, theirs: DevicePages) -> PeerPages:
    return PeerPages(own, theirs.handle, theirs.mark, theirs.num_bytes)


def test_another_process_reads_a_page(subprocess_env: dict[str, str]) -> None:
    pages = DevicePages(HostDevice(), SIZE, 3)
    held = [filled(pages, number) for number in range(3)]
    named = [pages.handle.hex(), pages.mark.hex(), str(pages.num_bytes), str(SIZE)]
    told = subprocess.run(
        [sys.executable, "-m", "tests.core.host_device", *named, str(held[1].offset)],
        env=subprocess_env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert bytes.fromhex(told.stdout) == content(1)


def test_pages_are_bounded_and_free_when_nobody_holds_them() -> None:
    pages = DevicePages(HostDevice(), SIZE, 3)
    first, *others = pages.take(5)
    assert len(others) == 2
    assert len({page.offset for page in (first, *others)}) == 3
    assert len(first) == SIZE
    assert pages.take(1) == []
    offset = first.offset
    holders = [first, first]
    del first
    holders.pop()
    assert pages.num_free == 0
    holders.pop()
    assert pages.num_free == 1
    assert pages.take(2)[0].offset == offset
    assert pages.num_free == 1
    del others
    assert pages.num_free == 3


def test_a_page_is_freed_on_any_thread() -> None:
    pages = DevicePages(HostDevice(), SIZE, 1)
    held = pages.take(1)
    thread = Thread(target=held.clear)
    thread.start()
    thread.join()
    assert pages.num_free == 1


def test_a_page_is_copied_to_one_of_ones_own_or_to_the_host() -> None:
    device = HostDevice()
    own, theirs = DevicePages(device, SIZE, 1), DevicePages(HostDevice(), SIZE, 2)
    held = [filled(theirs, number) for number in range(2)]
    peer = peer_of(own, theirs)
    first = peer.copy(held[0].offset)
    assert isinstance(first, DevicePage)
    assert first.to_host() == content(0)
    assert peer.copy(held[1].offset) == content(1), "on the host: no page is free"
    del held
    assert theirs.num_free == 2
    assert first.to_host() == content(0)
    peer.close()
    peer.close()
    assert device.driver.opened == {}


@given(st.integers(-(2**63), 2**63) | st.integers(FIRST_PAGE - 1, FIRST_PAGE + SIZE + 1))
def test_nothing_outside_of_the_pages_is_read(offset: int) -> None:
    pages = DevicePages(HostDevice(), SIZE, 2)
    peer = peer_of(pages, pages)
    if FIRST_PAGE <= offset <= FIRST_PAGE + SIZE:
        assert len(peer.copy(offset)) == SIZE
    else:
        with pytest.raises(ValueError, match=f"a page at {offset} is outside of the device's"):
            peer.copy(offset)


@pytest.mark.parametrize("wrong", ["mark", "size"])
def test_another_memory_under_the_handle_is_not_read(wrong: str) -> None:
    device = HostDevice()
    pages = DevicePages(device, SIZE, 1)
    mark = secrets.token_bytes(16) if wrong == "mark" else pages.mark
    num_bytes = 1 << 22 if wrong == "size" else pages.num_bytes
    with pytest.raises(OSError, match="a handle opens another memory here"):
        PeerPages(pages, pages.handle, mark, num_bytes)
    assert device.driver.opened == {}


@pytest.mark.parametrize("opens", [True, False])
def test_a_handle_that_is_none_cannot_be_opened(opens: bool) -> None:
    pages = DevicePages(HostDevice(HostDriver(opens=opens)), SIZE, 1)
    with pytest.raises(OSError, match="cuIpcOpenMemHandle_v2: CUDA_ERROR_INVALID_HANDLE"):
        PeerPages(pages, bytes(HANDLE_BYTES), pages.mark, pages.num_bytes)


def test_memory_without_a_handle_is_given_back() -> None:
    driver = HostDriver(exports=False)
    with pytest.raises(OSError, match="cuIpcGetMemHandle: CUDA_ERROR_INVALID_VALUE"):
        DevicePages(HostDevice(driver), SIZE, 1)
    assert driver.allocated == {}


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(OSError, match="cuDeviceGet: CUDA_ERROR_INVALID_DEVICE"):
        CudaDevice(1, HostDriver())


# --- between engines -----------------------------------------------------------------------------


def engine_on(device: HostDevice, **options: object) -> tuple[Engine, DeviceToyRunner, list[int]]:
    """An engine, its runner, and the number of tokens of each step that it ran."""
    steps: list[int] = []
    runner = DeviceToyRunner(
        device, num_blocks=64, vocab_size=VOCABULARY,
        before_step=lambda batch: steps.append(batch.num_tokens), **options,
    )  # fmt: skip
    config = EngineConfig(max_step_tokens=128, max_draft_tokens=0)
    return Engine(runner, config, model_key=b"toy"), runner, steps


def prefilled(pages: Callable[[], DevicePages | None]) -> tuple[list[int], list[KVBlock]]:
    engine, _, _ = engine_on(HostDevice())
    one = SamplingParams(max_tokens=1)
    engine.add(request(200, exports_kv=True, export_pages=pages, sampling=one).sequence())
    first, kv, _ = run(engine)
    return first, kv


def answered(engine: Engine, first: list[int], kv: list[KVBlock]) -> bool:
    """Whether the rest of the answer is right."""
    engine.add(request(200, kv=tuple(kv), output_ids=tuple(first)).sequence())
    kv.clear()
    tokens, _, _ = run(engine)
    check_pool(engine.pool)
    return first + tokens == oracle(request(200).prompt_ids, 20)


@pytest.mark.parametrize("count", [1, 3, 8])
def test_blocks_stay_on_the_device_while_there_are_pages(count: int) -> None:
    """Three full blocks and an open one; those without a page go through the host."""
    pages = DevicePages(HostDevice(), 1024, count)
    first, kv = prefilled(lambda: pages)
    assert [isinstance(block.data, DevicePage) for block in kv] == [i < count for i in range(4)]
    assert [block.num_tokens for block in kv] == [64, 64, 64, 8]
    assert pages.num_free == max(count - 4, 0)
    engine, runner, steps = engine_on(HostDevice())
    assert answered(engine, first, kv)
    assert steps == [1] * 19
    assert runner.num_admitted == min(count, 4)
    assert runner.admissions == {1: [1], 3: [3], 8: [3, 1]}[count]  # full blocks at once
    assert pages.num_free == count


def test_an_open_block_is_taken_beside_full_ones_that_are_there_already() -> None:
    """A step takes them as they come, before their request."""
    engine, runner, steps = engine_on(HostDevice())
    for _ in range(2):
        pages = DevicePages(HostDevice(), 1024, 4)
        first, kv = prefilled(lambda given=pages: given)
        assert answered(engine, first, kv)
    assert steps == [1] * 38
    assert runner.admissions == [3, 1, 1]


def test_pages_are_asked_for_at_each_export() -> None:
    """The peer says after the first step that it can read them."""
    pages = DevicePages(HostDevice(), 1024, 8)
    answers = chain([None], repeat(pages))
    first, kv = prefilled(lambda: next(answers))
    assert [isinstance(block.data, DevicePage) for block in kv] == [False, False, True, True]
    engine, _, steps = engine_on(HostDevice())
    assert answered(engine, first, kv)
    assert steps == [1] * 19


@pytest.mark.parametrize("wrong", range(4))
def test_a_spoilt_page_is_computed_again(wrong: int, caplog: pytest.LogCaptureFixture) -> None:
    pages = DevicePages(HostDevice(), 1024, 8)
    first, kv = prefilled(lambda: pages)
    page = kv[wrong].data
    assert isinstance(page, DevicePage)
    bytes_at(page.address, len(page))[77] ^= 4
    del page
    engine, _, steps = engine_on(HostDevice())
    assert answered(engine, first, kv)
    assert sum(steps) == 19 + 200 - wrong * 64
    assert "1 of 1 KV blocks were spoilt between devices" in caplog.text


@pytest.mark.parametrize("why", ["another dtype", "another kind of runner", "no checksum"])
def test_a_page_that_a_runner_cannot_take_is_computed_again(why: str) -> None:
    pages = DevicePages(HostDevice(), 1024, 3)
    first, kv = prefilled(lambda: pages)
    kv = [replace(block, checksum=None) if why == "no checksum" else block for block in kv]
    dtype = "float32" if why == "another dtype" else "float16"
    engine, _, steps = engine_on(HostDevice(), dtype=dtype)
    if why == "another kind of runner":
        engine, steps = toy_engine()
    assert answered(engine, first, kv)
    assert sum(steps) == 19 + 200
    assert pages.num_free == 3
