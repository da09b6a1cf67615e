"""Which files of ours one plain streamed request enters, on a platform that is warm.

Client, edge, node and engine run in this process, as in `skerry up`, put together without what runs
by itself (the watchdog, the writers of files): what is counted is what the request costs.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from skerry import AI
from skerry.runners import RunnerName
from skerry_edge.api.app import create_app
from skerry_edge.gate.admission import Admission
from skerry_edge.gate.tokens import TokenStore
from skerry_edge.generation.edge import Edge
from skerry_edge.http.server import listen, serve
from skerry_edge.ledger.batches import Batches
from skerry_edge.ledger.file_store import FileStore
from skerry_edge.ledger.responses_store import ResponseStore
from skerry_edge.ledger.stores import Stores
from skerry_edge.limits import Limits
from skerry_edge.money.sqlite_spending import SqliteSpending
from skerry_edge.telemetry.trace_store import EndedTrace
from skerry_edge.text.model import TextModel
from skerry_regions.drivers.sqlite_queue import SqliteQueue
from skerry_regions.models.catalog import Catalog, ModelSpec
from skerry_regions.models.model_files import ModelFiles
from skerry_regions.node.engines import EngineOptions, FileTierOptions, open_engine
from skerry_regions.node.grammar.grammars import grammars_of
from skerry_regions.node.node import Node
from skerry_regions.region.local import LocalRegion

ROOTS = ("sdk/skerry", "edge/skerry_edge", "regions/skerry_regions", "core/skerry_core")
REPOSITORY = Path(__file__).resolve().parents[2]
ACCOUNT = "0" * 32
FILE_TIER_BYTES = 64 << 20
NUM_BLOCKS = 8  # few, so that the pool has been through all of them when it is warm
QUESTION = "Why is the sky blue?"
SEED = 1  # of an answer that repeats nothing, so that no tokens are looked up in the prompt
PATIENCE = 60.0  # seconds
WARM_UPS = 12  # requests before the one that is counted: imports, caches, the file of the journal


class Entered:
    """Collects the source files whose functions are called while it watches."""

    def __init__(self) -> None:
        self._calls: set[tuple[str, str]] = set()  # path, qualified name
        self._background: set[asyncio.Task[Any]] = set()
        self._watched: list[Callable[[Callable[[], None]], object]] = []

    def watch(self, call_there: Callable[[Callable[[], None]], object]) -> None:
        """Count the calls of another thread too; `call_there` has it call a function."""
        self._watched.append(call_there)

    def leave_out(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Do not count what these tasks call: they run whether or not there is a request."""
        self._background.update(tasks)

    @contextlib.contextmanager
    def counting(self) -> Generator[None]:
        """Count what this thread and the watched ones call while the block runs."""
        self._profile_all(self._profile)
        try:
            yield
        finally:
            self._profile_all(None)

    def files(self) -> dict[str, list[str]]:
        """Return the product's files that were entered, as paths in the repository, each with the
        functions that were called; both sorted."""
        found: dict[str, list[str]] = {}
        for path, name in sorted(self._calls):
            if path.startswith(f"{REPOSITORY}/"):
                relative = Path(path).relative_to(REPOSITORY).as_posix()
                if relative.startswith(ROOTS):
                    found.setdefault(relative, []).append(name)
        return found

    def _profile_all(self, profile: Callable[[FrameType, str, Any], None] | None) -> None:
        for call_there in self._watched:
            is_set = threading.Event()

            def set_it(is_set: threading.Event = is_set) -> None:
                sys.setprofile(profile)
                is_set.set()

            call_there(set_it)
            is_set.wait()
        sys.setprofile(profile)

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and not self._is_background():
            self._calls.add((frame.f_code.co_filename, frame.f_code.co_qualname))

    def _is_background(self) -> bool:
        try:
            return asyncio.current_task() in self._background
        except RuntimeError:  # no event loop runs on this thread
            return False


def files_of_a_plain_stream(
    spec: ModelSpec, files: ModelFiles, folder: Path, *, runner: RunnerName, cache_dir: Path
) -> dict[str, list[str]]:
    """Return the files that one streamed `AI.run` of a warm platform enters, and what of them.

    `folder` is for what the platform writes; `cache_dir` has the runner's compiled kernels.
    """
    entered = Entered()
    with _platform(spec, files, folder, runner, cache_dir, entered) as (ai, num_ended):
        for number in range(1, WARM_UPS + 1):
            _stream(ai, spec.id)
            _wait_for(lambda number=number: num_ended() == number)
        with entered.counting():
            _stream(ai, spec.id)
            _wait_for(lambda: num_ended() == WARM_UPS + 1)
    return entered.files()


def _stream(ai: AI, model: str) -> None:
    turns = [{"role": "user", "content": QUESTION}]
    inputs: dict[str, Any] = {"messages": turns, "max_tokens": 8, "seed": SEED}
    chunks = list(ai.run(model, inputs, stream=True))
    if not chunks[-1].usage.completion_tokens:
        raise RuntimeError("the platform answered nothing")


def _wait_for(is_so: Callable[[], bool]) -> None:
    """Wait until the edge, too, is through with a request whose last chunk was read."""
    end = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > end:
            raise RuntimeError("the edge did not end the request")
        time.sleep(0.001)


@contextlib.contextmanager
def _platform(
    spec: ModelSpec,
    files: ModelFiles,
    folder: Path,
    runner: RunnerName,
    cache_dir: Path,
    entered: Entered,
) -> Generator[tuple[AI, Callable[[], int]]]:
    """Serve a model on a thread, which is watched, and so is its engine's; the function returns how
    many requests are over."""
    tokens = TokenStore(folder / "tokens.json")
    token, _ = tokens.create(account_id=ACCOUNT, now=0)
    engine = open_engine(
        spec,
        files,
        runner=runner,
        options=EngineOptions(num_blocks=NUM_BLOCKS),
        threads=1,
        cache_dir=cache_dir,
        file_tier=FileTierOptions(folder / "kv", FILE_TIER_BYTES),
        progress=lambda what, share: None,
    )
    is_ready = threading.Event()
    address: list[Any] = []  # port, then what stops it
    ended: list[EndedTrace] = []

    async def run() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        node = Node(id="node-1", region="local", loop=loop, reports=False)
        node.serve(spec.id, engine, grammars_of(files, engine))
        between_steps = node.connector(spec.id).between_steps
        entered.watch(lambda call: between_steps(lambda _: call()))
        entered.watch(loop.call_soon_threadsafe)
        edge = Edge(
            catalog=Catalog([spec]),
            texts={spec.id: TextModel(files, context_window=spec.context_window)},
            region=LocalRegion(node),
            tokens=tokens,
            secret=b"s" * 32,
            admission=Admission(spending=SqliteSpending(folder / "spending.db")),
            responses=ResponseStore(folder / "responses.db"),
            batches=Batches(
                queue=SqliteQueue(folder / "queue.db"), files=FileStore(folder / "files.db")
            ),
            stores=Stores.in_folder(folder / "stores", edge="edge-1"),
        )

        listener = listen("127.0.0.1", 0, limits := Limits())

        edge.traces.watch(ended.append)

        def ready() -> None:
            entered.leave_out(asyncio.all_tasks())
            port = listener.getsockname()[1]
            address[:] = [port, lambda: loop.call_soon_threadsafe(stop.set)]
            is_ready.set()

        await serve(create_app(edge), listener=listener, limits=limits, ready=ready, stop=stop)

    def serve_until_stopped() -> None:
        try:
            asyncio.run(run())
        finally:
            is_ready.set()

    thread = threading.Thread(target=serve_until_stopped, name="platform")
    thread.start()
    is_ready.wait()
    if not address:
        raise RuntimeError("the platform did not start")
    port, stop_serving = address
    stop: Callable[[], None] = stop_serving
    try:
        with AI(base_url=f"http://127.0.0.1:{port}", account_id=ACCOUNT, api_token=token) as ai:
            yield ai, lambda: len(ended)
    finally:
        stop()
        thread.join()
