"""The examples with real platforms.

`local` as a newcomer runs it: three regions come, answer, change, heal, shrink and go; with
`import-existing` Terraform takes over what is there.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.command import MODEL, Skerry, is_alive, new_home, until
from tests.e2e.control.control_client import ControlClient, ControlPlane
from tests.infra.terraform.command import Terraform, plugins_of

from skerry import AI
from skerry_regions.models.model_files import ModelFiles
from skerry_regions.process.socket_paths import SocketPaths
from skerry_terraform.install import install, installed_plugin

INFRA = Path(__file__).parents[4] / "infra"
ASKED: dict[str, Any] = {"prompt": "The sea is " * 30, "raw": True, "seed": 7, "max_tokens": 200}


@pytest.fixture
def skerry(tmp_path: Path, default_model: ModelFiles) -> Iterator[Skerry]:
    skerry = new_home(tmp_path, default_model)
    skerry.up()
    try:
        yield skerry
    finally:
        assert skerry("down", "--timeout", "60").returncode == 0


def copy_of(name: str, folder: Path) -> Path:
    """Of an example, with the modules that it uses."""
    return shutil.copytree(INFRA, folder / "infra") / "terraform" / "examples" / name


def example(name: str, folder: Path, skerry: Skerry, **variables: str) -> Terraform:
    """With the provider installed as `skerry terraform install` does it."""
    copy = copy_of(name, folder)
    (copy / "home").mkdir()
    install(copy / "home", installed_plugin())
    given = {f"TF_VAR_{variable}": value for variable, value in variables.items()}
    return Terraform(copy, {"SKERRY_HOME": str(skerry.home), **given})


def urls(terraform: Terraform) -> dict[str, str]:
    """By region."""
    found: dict[str, str] = json.loads(terraform("output", "-json", "urls"))
    return found


@contextlib.contextmanager
def streams(platforms: dict[str, AI]) -> Generator[list[str]]:
    """One stream after the other through each region until the block ends; their texts."""
    texts: list[str] = []
    stop = threading.Event()

    def ask(ai: AI) -> None:
        while not stop.is_set():
            chunks = ai.run(MODEL, ASKED, stream=True)
            texts.append("".join(chunk.response or "" for chunk in chunks))

    threads = [threading.Thread(target=ask, args=(ai,)) for ai in platforms.values()]
    for thread in threads:
        thread.start()
    try:
        yield texts
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_what_is_there_is_taken_over(
    tmp_path: Path, terraform: Terraform, control: ControlPlane, region: str
) -> None:
    control.make("regions", name=region, iata="FRA")
    control.make("pools", name="decode", region=region, role="decode", replicas=1)
    folder = copy_of("import-existing", tmp_path)
    (folder / "provider.tf").write_text(terraform.provider)
    replaced = (folder / "main.tf").read_text().replace('provider "skerry" {}', "")
    (folder / "main.tf").write_text(replaced)
    terraform.folder = folder
    terraform.variables["TF_VAR_region"] = region
    terraform("init")
    assert "2 imported, 0 added, 0 changed" in terraform.apply()
    assert terraform.is_settled()


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_three_regions_come_change_heal_shrink_and_go(tmp_path: Path, skerry: Skerry) -> None:
    terraform = example("local", tmp_path, skerry, runner="toy")
    control = ControlClient(skerry)
    terraform("init")
    assert "13 added" in terraform.apply()
    assert terraform.is_settled()
    nodes = control.nodes()
    assert sorted(nodes) == sorted(
        f"{region}-{name}-0"
        for region in ("fra", "iad", "nrt")
        for name in ("prefill", "decode", "edge")
    )
    with contextlib.ExitStack() as stack:
        platforms = {
            region: stack.enter_context(
                AI(base_url=url, account_id=control.account, api_token=control.token)
            )
            for region, url in urls(terraform).items()
        }
        whole = {ai.run(MODEL, ASKED)["response"] for ai in platforms.values()}
        assert len(whole) == 1, "each region answers, and all of them the same"

        with streams(platforms) as texts:
            assert "0 added, 3 changed" in terraform.apply("-var", "decode_replicas=2")
        assert set(texts) == whole, "no stream was cut"
        assert control.get("pools/nrt-decode")["status"]["ready_replicas"] == 2

        killed = control.nodes()["fra-decode-0"]
        with streams(platforms) as texts:
            os.kill(killed["pid"], signal.SIGKILL)
            until(lambda: control.nodes().get("fra-decode-0", killed)["pid"] != killed["pid"])
            control.until_ready("pools/fra-decode")
        assert set(texts) == whole, "no stream was cut"

        two = ("-var", "decode_replicas=2", "-var", 'regions={fra="FRA",iad="IAD"}')
        gone = [node["pid"] for node in control.nodes().values() if node["region"] == "nrt"]
        stack.callback(platforms.pop("nrt").close)
        with streams(platforms) as texts:
            assert "0 added, 1 changed, 4 destroyed" in terraform.apply(*two)
        assert set(texts) == whole, "no stream was cut"
        assert [pid for pid in gone if is_alive(pid)] == []
        reasons = {
            event["reason"]
            for event in control.get("events?kind=pool&id=nrt-decode&limit=500")["items"]
        }
        assert "Draining" in reasons
    pids = [node["pid"] for node in control.nodes().values()]
    terraform.destroy()
    control.http.close()
    assert [pid for pid in pids if is_alive(pid)] == []
    left = [
        *(skerry.home / "run" / "launched").iterdir(),
        *SocketPaths.of(skerry.home).root.iterdir(),
    ]
    assert left == []
    assert [*plugins_of(terraform.folder)] == []
