"""The launcher `ray` and its driver: orders and reports over a line, whatever the driver does."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.regions.control.ray import scripted_driver
from tests.regions.control.ray.support import INCARNATION, kept, launch

from skerry_regions.control.planning.launcher import LaunchFailed, Observation
from skerry_regions.control.reconcile.launchers import Launchers
from skerry_regions.control.reconcile.ray.ray_launcher import RayLauncher
from skerry_regions.control.reconcile.ray.ray_messages import NodeEnd, RayOrders, RayReport
from skerry_regions.process.local_launcher import Deposed

Scene = Callable[[RayLauncher], Coroutine[Any, Any, None]]


def report(**values: Any) -> str:
    return "report " + msgspec.json.encode(RayReport(**values)).decode()


class Script:
    """What the driver is to answer, and what it was ordered."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def play(self, scene: Scene, *lines: str) -> None:
        """Run a scene against a driver that answers line by line, with the last one again."""
        (self.folder / "script").write_text("\n".join(lines))
        command = (sys.executable, scripted_driver.__file__, str(self.folder))

        async def run() -> None:
            clusters = {"fra": "127.0.0.1:6379"}
            launcher = RayLauncher(
                clusters, self.folder, list, lambda: None, term=1, driver=command
            )
            try:
                async with asyncio.timeout(60):
                    await scene(launcher)
            finally:
                await launcher.close()

        asyncio.run(run())

    def orders(self) -> list[RayOrders]:
        lines = (self.folder / "orders").read_bytes().splitlines()
        return [msgspec.json.decode(line, type=RayOrders) for line in lines]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def test_the_first_look_waits_for_the_first_report(script: Script) -> None:
    async def scene(launcher: RayLauncher) -> None:
        assert [*(await launcher.list()).running] == ["fra-p-0"]

    script.play(scene, report(keepers=(kept(),)))


def test_what_is_started_has_an_incarnation_above_all_before(script: Script) -> None:
    ahead = kept(incarnation=1 << 61, end=NodeEnd(status=1))

    async def scene(launcher: RayLauncher) -> None:
        assert [each.status for each in (await launcher.list()).ended] == [1]
        for _ in range(2):
            assert await launcher.start(launch()) == 0, "of an id that is to run: nothing"
        await until(lambda: bool(any(each.start for each in script.orders())))

    script.play(scene, report(keepers=(ahead,)))
    [ordered, *again] = next(each.start for each in script.orders() if each.start)
    assert (ordered.id, ordered.incarnation > 1 << 61, again) == ("fra-p-0", True, [])


@pytest.mark.parametrize("trouble", ["abort", "cut {", "report {}x", "report [1]"])
def test_a_driver_that_ends_is_started_again_and_nodes_count_as_they_did(
    script: Script, trouble: str
) -> None:
    async def scene(launcher: RayLauncher) -> None:
        before = await launcher.list()
        await until(lambda: "driver ended" in launcher._clusters["fra"].away)
        assert await launcher.list() == before
        with pytest.raises(LaunchFailed, match="the Ray cluster of fra is away: its driver ended"):
            await launcher.start(launch(1))
        await until(lambda: len(launcher._clusters["fra"].kept) == 2)
        assert (await launcher.list()).ended == ()

    script.play(scene, report(keepers=(kept(),)), trouble, report(keepers=(kept(), kept(1))))


def test_a_driver_of_another_version_is_not_believed(script: Script) -> None:
    async def scene(launcher: RayLauncher) -> None:
        assert [*(await launcher.list()).running] == ["fra-p-1"]

    script.play(scene, report(version=9, keepers=(kept(),)), report(keepers=(kept(1),)))


def test_without_a_head_nothing_is_started_and_nothing_has_ended(script: Script) -> None:
    async def scene(launcher: RayLauncher) -> None:
        await launcher.list()
        await until(lambda: launcher._clusters["fra"].away == "no head")
        observed = await launcher.list()
        assert ([*observed.running], observed.ended) == (["fra-p-0"], ())
        with pytest.raises(LaunchFailed, match="no head"):
            await launcher.start(launch(1))

    script.play(scene, report(keepers=(kept(),)), report(away="no head"))


def test_who_was_replaced_starts_and_ends_nothing(script: Script) -> None:
    async def scene(launcher: RayLauncher) -> None:
        await launcher.list()
        for act in (
            launcher.start(launch(1)), launcher.stop("fra-p-0"),
            launcher.drain("fra-p-0", patiently=True),
        ):  # fmt: skip
            with pytest.raises(Deposed, match=r"its term is 2, ours 1"):
                await act

    script.play(scene, report(keepers=(kept(),), deposed_by=2))


def test_drains_and_stops_are_ordered_by_name(script: Script) -> None:
    async def scene(launcher: RayLauncher) -> None:
        await launcher.list()
        await launcher.drain("fra-p-0", patiently=False)
        await launcher.stop("fra-p-1")
        await launcher.stop("fra-q-9")
        observed = await launcher.list()
        assert observed.running["fra-p-0"].state == "draining"
        await until(lambda: bool(script.orders()[-1].stop))

    script.play(scene, report(keepers=(kept(0), kept(1))))
    last = script.orders()[-1]
    assert (last.term, last.drain, last.stop) == (1, ("fra-p-0",), ("fra-p-1",))


def test_a_region_without_a_cluster_says_what_to_give(tmp_path: Path) -> None:
    async def scene() -> None:
        launcher = RayLauncher({}, tmp_path, list, lambda: None, term=1)
        assert await launcher.list() == Observation()
        with pytest.raises(LaunchFailed, match=r"`skerry control --ray fra=HOST:PORT`"):
            await launcher.start(launch())
        await launcher.close()

    asyncio.run(scene())


def test_each_pool_says_who_starts_its_nodes() -> None:
    class Recorded:
        def __init__(self) -> None:
            self.started = list[str]()
            self.told = list[str]()

        async def list(self) -> Observation:
            return Observation()

        async def start(self, launch: Any) -> int:
            self.started.append(launch.id)
            return 0

        async def drain(self, id: str, *, patiently: bool) -> None:
            self.told.append(id)

        async def stop(self, id: str) -> None:
            self.told.append(id)

    async def scene() -> None:
        local, ray, hosts = Recorded(), Recorded(), Recorded()
        both = Launchers(local, {"machines": hosts, "ray": ray})
        here = msgspec.structs.replace(launch().settings, launcher="local")  # type: ignore[type-var]
        await both.start(launch(0))
        await both.start(launch(1, settings=here))
        await both.stop("fra-p-0")
        assert (local.started, ray.started, hosts.started) == (["fra-p-1"], ["fra-p-0"], [])
        assert local.told == ray.told == hosts.told == ["fra-p-0"], "each knows its own"

    asyncio.run(scene())
    assert launch().incarnation == INCARNATION
