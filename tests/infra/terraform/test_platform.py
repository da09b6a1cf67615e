"""From an empty home to a platform that answers, and back: the installed provider, real nodes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.command import MODEL, is_alive, new_home, until
from tests.e2e.control.control_client import ControlPlane
from tests.infra.terraform.command import (
    Fault,
    FaultyProxy,
    Terraform,
    plugins_of,
    provider_block,
    terraform_binary,
)
from tests.infra.terraform.configurations import know_lost_model
from tests.infra.terraform.platform_files import ALL, DRY, EXPECTED, PLATFORM, WHOLE, written

from skerry import AI
from skerry_regions.models.model_files import ModelFiles
from skerry_terraform.install import COMMAND, PLATFORMS, SOURCE, install, installed_plugin

pytestmark = pytest.mark.model


@pytest.fixture
def terraform(tmp_path: Path) -> Terraform:
    """The provider is installed as `skerry terraform install` does it."""
    terraform_binary()
    folder = tmp_path / "work"
    (folder / "home").mkdir(parents=True)
    install(folder / "home", installed_plugin())
    return Terraform(folder, {"SKERRY_HOME": str(tmp_path / "home")})


@pytest.fixture
def control(
    tmp_path: Path, terraform: Terraform, default_model: ModelFiles
) -> Iterator[ControlPlane]:
    skerry = new_home(tmp_path, default_model)
    know_lost_model(skerry.home)
    control = ControlPlane(skerry)
    yield control
    control.stop()


def test_a_platform_comes_stays_and_goes(terraform: Terraform, control: ControlPlane) -> None:
    """The provider block is empty: endpoint and token are those that the platform wrote down."""
    terraform.write(PLATFORM)
    assert f"Installed {SOURCE}" in terraform("init")
    assert "5 added" in terraform.apply()
    state = terraform.state()
    url, secret = state["skerry_edge_node.edge"]["url"], state["skerry_api_token.app"]["secret"]
    with AI(base_url=url, account_id=control.account, api_token=secret) as ai:
        assert ai.run(MODEL, {"prompt": "The sea is", "max_tokens": 2})["response"]
    assert terraform.is_settled()
    pids = [node["pid"] for node in control.nodes().values()]
    assert len(pids) == 2

    assert "5 destroyed" in terraform.destroy()
    assert [pid for pid in pids if is_alive(pid)] == []
    assert control.nodes() == {}
    assert control.get("regions")["items"] == []
    assert [*(control.skerry.home / "run" / "launched").glob("*.json")] == []
    assert [*plugins_of(terraform.folder)] == []


def test_one_lock_file_holds_for_all(terraform: Terraform, tmp_path: Path) -> None:
    terraform.write("")
    terraform("init")
    lock = terraform.folder / ".terraform.lock.hcl"
    locked = lock.read_text()
    mirror = terraform.folder / "home" / ".terraform.d" / "plugins"
    platforms = [f"-platform={platform}" for platform in PLATFORMS]
    terraform("providers", "lock", f"-fs-mirror={mirror}", *platforms)
    assert lock.read_text() == locked

    other = Terraform(tmp_path / "colleague", {})
    (other.folder / "home").mkdir(parents=True)
    install(other.folder / "home", installed_plugin())
    other.write("")
    (other.folder / ".terraform.lock.hcl").write_text(locked)
    other("init", "-lockfile=readonly")


def test_a_provider_that_was_uninstalled_says_what_to_do(terraform: Terraform) -> None:
    terraform.write("")
    terraform("init")
    (terraform.folder / "home" / ".terraform.d" / "skerry" / COMMAND).unlink()
    assert "skerry terraform install" in terraform("providers", "schema", "-json", rc=1)


@pytest.mark.slow
def test_a_killed_terraform_leaves_no_plugin_and_no_token(
    terraform: Terraform, control: ControlPlane
) -> None:
    """What it had created is found by the next run; an ephemeral token is revoked."""
    control.make("regions", name="fra", iata="FRA")
    terraform.write(
        'ephemeral "skerry_api_token" "t" {\n  name = "ephemeral"\n}\n'
        'resource "skerry_pool" "p" {\n  name = "p"\n  region = "fra"\n  role = "hybrid"\n'
        '  model = "@cf/lost/model"\n}\n'
    )
    terraform("init")
    process = terraform.start("apply", "-auto-approve")
    until(lambda: control.http.get("/pools/fra-p").status_code == 200)
    process.kill()
    process.communicate()
    until(lambda: not [*plugins_of(terraform.folder)])
    names = {token["name"] for token in control.get("api_tokens")["items"]}
    assert "ephemeral" not in names
    (terraform.folder / ".terraform.tfstate.lock.info").unlink(missing_ok=True)
    text = (terraform.folder / "main.tf").read_text()
    (terraform.folder / "main.tf").write_text(
        text.replace('"@cf/lost/model"', '"@cf/lost/model"\n  wait_for_ready = false')
    )
    terraform.apply()
    assert terraform.is_settled()


@pytest.mark.slow
@pytest.mark.parametrize("collection", ["regions", "pools", "deployments"])
def test_a_killed_plugin_leaves_nothing_that_the_next_run_does_not_find(
    terraform: Terraform, control: ControlPlane, collection: str
) -> None:
    """As if it had never been killed: an empty plan afterwards, and nothing left by destroy."""
    num_before = {"regions": 0, "pools": 0, "deployments": 2}[collection]  # that do not wait
    terraform.write(WHOLE.replace("WAIT", "false", num_before).replace("WAIT", "true"))
    terraform("init")
    process = terraform.start("apply", "-auto-approve")
    path = f"/{collection}/{ALL[collection]}"
    until(lambda: control.http.get(path).status_code == 200)
    for plugin in plugins_of(terraform.folder):
        os.kill(plugin, signal.SIGKILL)
    process.communicate()
    assert process.returncode != 0
    terraform.write(WHOLE.replace("WAIT", "false"))
    terraform.apply()
    assert terraform.is_settled()
    terraform.destroy()
    for each, id in ALL.items():
        assert control.http.get(f"/{each}/{id}").status_code == 404


@pytest.mark.slow
@pytest.mark.parametrize("carried_out", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(5))
def test_a_plugin_killed_as_it_creates_ends_as_if_it_never_was(
    terraform: Terraform, control: ControlPlane, number: int, carried_out: bool
) -> None:
    """At ten points of an apply: as each of five is written, before and after that is done."""
    before = written(control)
    proxy = FaultyProxy(str(control.http.base_url).removesuffix("/control/v1/"))
    with proxy.running() as url:
        terraform.provider = provider_block(url, control.token)
        terraform.write(DRY)
        terraform("init")

        def kill() -> None:
            for plugin in plugins_of(terraform.folder):
                os.kill(plugin, signal.SIGKILL)

        proxy.fail(Fault("POST", after=number, meanwhile=kill, carries_out=carried_out))
        terraform.apply(rc=1)
        assert proxy.faults == []
        done = sum(map(len, written(control).values())) - sum(map(len, before.values()))
        assert done == number + carried_out
        told = terraform.apply()
        assert f"{5 - number} added" in told
        assert terraform.is_settled()
        found = written(control)
        assert {collection: len(found[collection]) for collection in ALL} == dict.fromkeys(ALL, 1)
        assert found == EXPECTED | {"api_tokens": [*before["api_tokens"], {"name": "t"}]}
        assert not any(each["tainted"] for each in terraform.state().values())
        terraform.destroy()
    until(lambda: written(control) == before)


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_what_reaches_the_whole_group_harms_nothing(
    terraform: Terraform, control: ControlPlane, sent: signal.Signals
) -> None:
    control.make("regions", name="fra", iata="FRA")
    terraform.write(
        'resource "skerry_pool" "p" {\n  name = "p"\n  region = "fra"\n  role = "hybrid"\n'
        '  model = "@cf/lost/model"\n}\n'
    )
    terraform("init")
    process = terraform.start("apply", "-auto-approve")
    until(lambda: control.http.get("/pools/fra-p").status_code == 200)
    os.killpg(process.pid, sent)
    process.communicate()
    assert terraform.state()["skerry_pool.p"]["id"] == "fra-p"
    until(lambda: not [*plugins_of(terraform.folder)])
    terraform.destroy()
    assert control.http.get("/pools/fra-p").status_code == 404
