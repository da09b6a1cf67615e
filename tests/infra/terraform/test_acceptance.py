"""Real Terraform, the provider in this process, a real control plane behind a proxy that fails.

Nothing here needs nodes: a pool without a model runs nothing. Each test has a region of its own.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.command import Skerry, until
from tests.e2e.control_client import ControlPlane
from tests.infra.terraform.command import (
    Fault,
    FaultyProxy,
    Terraform,
    attached,
    interrupt,
    provider_block,
    terraform_binary,
)

from skerry_terraform.provider.provider import SKERRY

NAMES = (f"r{i}" for i in itertools.count())


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    terraform_binary()
    home = tmp_path_factory.mktemp("control") / "home"
    home.mkdir(mode=0o700)
    control = ControlPlane(Skerry(home))
    yield control
    control.stop()


@pytest.fixture
def proxy(control: ControlPlane) -> FaultyProxy:
    return FaultyProxy(str(control.http.base_url).removesuffix("/control/v1/"))


@pytest.fixture
def terraform(tmp_path: Path, control: ControlPlane, proxy: FaultyProxy) -> Iterator[Terraform]:
    with proxy.running() as url:
        block = provider_block(url, control.token, max_retries=4)
        with attached(tmp_path / "work", SKERRY, block) as terraform:
            yield terraform


@pytest.fixture
def region() -> str:
    return next(NAMES)


def a_region(name: str) -> str:
    return f'resource "skerry_region" "r" {{\n  name = "{name}"\n  iata = "FRA"\n}}\n'


def a_pool(region: str, **more: object) -> str:
    values = {"name": "p", "region": region, "role": "hybrid"} | more
    lines = [f"  {name} = {json.dumps(value)}" for name, value in values.items()]
    return "\n".join(['resource "skerry_pool" "p" {', *lines, "}", ""])


def within(region: str, **more: object) -> str:
    """A region and a pool that comes after it."""
    pool = a_pool(region, **more).replace(f'"{region}"', "skerry_region.r.name")
    return a_region(region) + pool


def test_what_was_applied_stays_so(
    terraform: Terraform, control: ControlPlane, region: str
) -> None:
    terraform.write(within(region, replicas=0, target_itl_seconds=0.1))
    terraform.apply()
    assert terraform.is_settled()
    pool = control.get(f"pools/{region}-p")
    assert (pool["replicas"], pool["target_itl_seconds"]) == (0, 0.1)

    terraform.write(within(region, replicas=3))  # and a default comes back
    assert "0 added, 1 changed, 0 destroyed" in terraform.apply()
    pool = control.get(f"pools/{region}-p")
    assert (pool["replicas"], pool["target_itl_seconds"]) == (3, 0.2)

    control.patch(f"pools/{region}-p", replicas=9, idle_seconds=7)
    assert not terraform.is_settled()
    terraform.apply()
    assert control.get(f"pools/{region}-p")["replicas"] == 3

    control.http.delete(f"/pools/{region}-p")
    until(lambda: control.http.get(f"/pools/{region}-p").status_code == 404)
    assert "1 added, 0 changed, 0 destroyed" in terraform.apply()

    terraform.destroy()
    assert control.http.get(f"/regions/{region}").status_code == 404
    assert terraform.state() == {}


def test_fixed_fields_force_another_resource(
    terraform: Terraform, control: ControlPlane, region: str
) -> None:
    terraform.write(within(region))
    terraform.apply()
    terraform.write(within(region, role="decode"))
    assert "# forces replacement" in terraform("plan")
    assert "1 added, 0 changed, 1 destroyed" in terraform.apply()
    assert control.get(f"pools/{region}-p")["role"] == "decode"


def test_import_and_generated_configuration(
    terraform: Terraform, control: ControlPlane, region: str
) -> None:
    control.make("regions", name=region, latitude=1.25, longitude=103.75)
    control.make("pools", name="p", region=region, role="decode", replicas=2)
    terraform.write(
        f'import {{\n  to = skerry_region.r\n  id = "{region}"\n}}\n'
        f'import {{\n  to = skerry_pool.p\n  id = "{region}-p"\n}}\n'
    )
    told = terraform("plan", "-generate-config-out=generated.tf")
    assert "2 to import, 0 to add, 0 to change" in told
    terraform.apply()
    assert terraform.is_settled()
    assert terraform.state()["skerry_region.r"]["longitude"] == 103.75

    missing = f'import {{\n  to = skerry_pool.q\n  id = "{region}-q"\n}}\n'
    terraform.write(missing + a_pool(region).replace('"p"', '"q"'))
    assert f"no pool '{region}-q' to import" in terraform("plan", rc=1)


@pytest.mark.parametrize(
    ("values", "summary", "line"),
    [
        ({"role": "foo"}, "Invalid value for role", '  role = "foo"'),
        ({"replicas": 1.5}, "Invalid value for replicas", "  replicas = 1.5"),
        ({"min_replicas": 1}, "Missing max_replicas", "  min_replicas = 1"),
    ],
)
def test_a_wrong_value_is_shown_where_it_is(
    terraform: Terraform, values: dict[str, object], summary: str, line: str
) -> None:
    terraform.write('resource "terraform_data" "d" {}\n' + a_pool("fra", **values))
    done = json.loads(terraform("validate", "-json", rc=1))
    (told,) = done["diagnostics"]
    assert told["summary"] == summary
    assert told["snippet"]["code"] == line


def test_a_check_is_left_out_only_for_the_unknown_value(terraform: Terraform, region: str) -> None:
    unknown = 'resource "terraform_data" "d" { input = "p" }\n'
    pool = a_pool(region, role="foo").replace('name = "p"', "name = terraform_data.d.output")
    terraform.write(unknown + pool)
    assert "must be one of prefill, decode, hybrid; got 'foo'" in terraform("plan", rc=1)


def test_what_the_control_plane_refuses_is_shown_where_it_is(
    terraform: Terraform, region: str
) -> None:
    terraform.write(a_region(region).replace("FRA", "XQX"))
    (told,) = terraform.diagnostics("apply", "-auto-approve")
    assert told["summary"] == "Invalid value for iata"
    assert told["snippet"]["code"] == '  iata = "XQX"'


def test_unknown_values_become_known(
    terraform: Terraform, control: ControlPlane, region: str
) -> None:
    text = f'resource "terraform_data" "d" {{ input = "{region}" }}\n' + within(region)
    text = text.replace(f'name = "{region}"', 'name = "${terraform_data.d.output}"')
    text = text.replace('name = "p"', 'name = "x-${terraform_data.d.output}"')  # refined
    text += 'output "id" { value = skerry_pool.p.id }\n'
    terraform.write(text)
    assert f"{region}-x-{region}" in terraform.apply()
    assert control.get(f"pools/{region}-x-{region}")["region"] == region
    assert terraform.is_settled()


def test_data_sources_and_functions(
    terraform: Terraform, control: ControlPlane, region: str
) -> None:
    control.make("regions", name=region, iata="FRA")
    control.make("pools", name="p", region=region, role="decode", replicas=2)
    terraform.write(
        f'data "skerry_pool" "p" {{ id = provider::skerry::pool_id("{region}", "p") }}\n'
        f'data "skerry_pools" "all" {{ region = "{region}" }}\n'
        f'data "skerry_region" "r" {{ id = "{region}" }}\n'
        'data "skerry_platform_status" "s" {}\n'
        'output "all" { value = [data.skerry_pool.p.replicas, data.skerry_region.r.iata, '
        "length(data.skerry_pools.all.pools), data.skerry_platform_status.s.account_id] }\n"
        f'output "url" {{ value = provider::skerry::endpoint_url("http://e", '
        f'"{control.account}", "@cf/m") }}\n'
    )
    terraform.apply()
    told = json.loads(terraform("output", "-json"))
    assert told["all"]["value"] == [2, "FRA", 1, control.account]
    url = f"http://e/client/v4/accounts/{control.account}/ai/run/@cf/m"
    assert told["url"]["value"] == url
    terraform.write('output "url" { value = provider::skerry::endpoint_url("e", "a", "m") }\n')
    assert "'e' is not a URL of an edge" in terraform("plan", rc=1)


# --- secrets -------------------------------------------------------------------------------------


def test_an_ephemeral_token_works_and_leaves_nothing(
    terraform: Terraform, control: ControlPlane, proxy: FaultyProxy
) -> None:
    terraform.write('ephemeral "skerry_api_token" "t" {\n  name = "for one run"\n}\n')
    told = terraform.apply()
    assert "Closing complete" in told
    assert proxy.seen("POST")
    tokens = control.get("api_tokens")["items"]
    assert [token for token in tokens if token["name"] == "for one run"] == []
    state = terraform.folder / "terraform.tfstate"
    assert "skerry_" not in (state.read_text() if state.exists() else "")


def test_a_token_is_kept_and_rotated(terraform: Terraform, control: ControlPlane) -> None:
    text = 'resource "skerry_api_token" "t" {\n  name = "ci"\n  scopes = ["admin", "read"]\n}\n'
    terraform.write(text)
    assert "(sensitive value)" in terraform.apply()
    first = terraform.state()["skerry_api_token.t"]
    assert terraform.is_settled()
    terraform.write(text.replace("}", '  rotate_when_changed = { month = "11" }\n}'))
    terraform.apply()
    second = terraform.state()["skerry_api_token.t"]
    assert second["secret"] != first["secret"]
    assert second["secret"].startswith(f"skerry_{second['id']}_")
    assert control.http.get(f"/api_tokens/{first['id']}").status_code == 404
    terraform.destroy()
    assert control.http.get(f"/api_tokens/{second['id']}").status_code == 404


# --- faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        Fault("POST", status=503, headers=(("retry-after", "0"),), times=2),
        Fault("POST", loses_answer=True),
        Fault("PATCH", loses_answer=True),
        Fault("DELETE", loses_answer=True),
    ],
    ids=lambda fault: f"{fault.method}-{fault.status or 'lost'}",
)
def test_a_fault_is_survived(
    terraform: Terraform, control: ControlPlane, proxy: FaultyProxy, region: str, fault: Fault
) -> None:
    proxy.fail(fault)
    terraform.write(a_region(region))
    terraform.apply()
    posts = proxy.seen("POST")
    assert len(posts) == (1 + fault.times if fault.method == "POST" else 1)
    assert len({key for _, _, key in posts}) == 1
    terraform.write(a_region(region).replace("FRA", "IAD"))
    terraform.apply()
    assert control.get(f"regions/{region}")["iata"] == "IAD"
    terraform.destroy()
    assert proxy.faults == []
    assert control.http.get(f"/regions/{region}").status_code == 404


def test_an_answer_that_comes_too_late_is_asked_for_again(
    terraform: Terraform, control: ControlPlane, proxy: FaultyProxy, region: str
) -> None:
    terraform.provider = terraform.provider.replace("}", "  timeout_seconds = 1\n}")
    proxy.fail(Fault("POST", seconds=1.5))
    terraform.write(a_region(region))
    terraform.apply()
    first, second = proxy.seen("POST")
    assert first == second
    assert terraform.is_settled()


def test_an_unknown_outcome_ends_in_an_import(
    terraform: Terraform, control: ControlPlane, proxy: FaultyProxy, region: str
) -> None:
    proxy.fail(Fault("POST", loses_answer=True, times=5))  # more than are tried
    terraform.write(a_region(region))
    told = terraform.apply(rc=1)
    assert "Whether the change was made is not known" in told
    told = terraform.apply(rc=1)
    assert f'id = "{region}"' in told
    terraform("import", "skerry_region.r", region)
    assert terraform.is_settled()


def test_an_old_plan_is_refused(terraform: Terraform, control: ControlPlane, region: str) -> None:
    terraform.write(a_region(region))
    terraform.apply()
    terraform.write(a_region(region).replace("FRA", "IAD"))
    terraform("plan", "-out=plan")
    control.patch(f"regions/{region}", residency="eu")
    assert "was changed since the plan was made" in terraform("apply", "plan", rc=1)


def test_what_is_protected_or_in_use_stays(
    terraform: Terraform, control: ControlPlane, region: str
) -> None:
    control.make("regions", name=region, iata="FRA")
    terraform.write(a_pool(region, deletion_protection=True))
    terraform.apply()
    assert "the pool is protected" in terraform("destroy", "-auto-approve", rc=1)
    assert "skerry_pool.p" in terraform.state()


def test_who_cannot_be_reached_and_who_is_not_let_in(
    terraform: Terraform, control: ControlPlane, region: str
) -> None:
    block = provider_block("http://127.0.0.1:9", control.token, max_retries=0)
    for provider, told in {
        block: "http://127.0.0.1:9: [Errno 111] Connection refused",
        provider_block("http://h/path", "t"): "must be a URL without a path",
        terraform.provider.replace("skerry_", "skerry_0"): "The token is wrong.",
    }.items():
        terraform.provider = provider
        terraform.write('data "skerry_platform_status" "s" {}\n')
        assert told in terraform("plan", rc=1)


def test_never_ready_is_told_and_replaced(
    terraform: Terraform, control: ControlPlane, region: str
) -> None:
    """A model that cannot be had, and a short patience."""
    text = within(region, model="@cf/none/such")
    text = text.removesuffix("}\n") + '  timeouts { create = "1s" }\n}\n'
    terraform.write(text)
    told = terraform.apply(rc=1)
    assert "ModelUnavailable" in told
    assert terraform.state()["skerry_pool.p"]["tainted"]
    assert "1 to add, 0 to change, 1 to destroy" in terraform("plan")
    terraform.destroy()
    assert control.http.get(f"/pools/{region}-p").status_code == 404


def test_an_interrupted_apply_leaks_nothing(
    terraform: Terraform, control: ControlPlane, region: str
) -> None:
    control.make("regions", name=region, iata="FRA")
    terraform.write(a_pool(region, model="@cf/none/such"))
    process = terraform.start("apply", "-auto-approve")
    until(lambda: control.http.get(f"/pools/{region}-p").status_code == 200)
    told = interrupt(process)
    assert "may not be ready yet" in told, told
    pool = terraform.state()["skerry_pool.p"]
    assert (pool["id"], pool["tainted"]) == (f"{region}-p", False)
    terraform.destroy()
    assert control.http.get(f"/pools/{region}-p").status_code == 404


@pytest.mark.slow
def test_a_control_plane_that_dies_in_mid_apply(
    terraform: Terraform, control: ControlPlane, proxy: FaultyProxy, region: str
) -> None:
    """It comes back at another port, behind the same address."""
    terraform.provider = terraform.provider.replace("= 4", "= 30")
    terraform.write(within(region))
    os.kill(control.process.pid, signal.SIGSTOP)  # takes connections and answers nothing
    process = terraform.start("apply", "-auto-approve")
    until(lambda: not proxy.requests.empty())
    control.kill()
    control.start()
    proxy.target = str(control.http.base_url).removesuffix("/control/v1/")
    assert process.wait(60) == 0
    told = process.communicate()[0]
    assert "2 added" in told
    assert control.get(f"pools/{region}-p")["id"] == f"{region}-p"


def test_a_name_that_is_taken_by_another_kind_is_refused(
    terraform: Terraform, control: ControlPlane, region: str
) -> None:
    control.make("regions", name=region, iata="FRA")
    control.make("edge_nodes", name=f"{region}-p", region=region)
    terraform.write(a_pool(region))
    assert "would both be called" in terraform.apply(rc=1)


def test_the_control_plane_keeps_the_state_with_a_lock(
    terraform: Terraform, control: ControlPlane, region: str
) -> None:
    address = f"{control.http.base_url}terraform/states/{region}"
    addresses = [f'{name} = "{address}"' for name in ("address", "lock_address", "unlock_address")]
    backend = "\n".join(["terraform {", 'backend "http" {', *addresses, "}", "}", ""])
    terraform.variables |= {"TF_HTTP_USERNAME": "t", "TF_HTTP_PASSWORD": control.token}
    terraform.write(backend + a_region(region))
    terraform("init")
    terraform.apply()
    assert terraform.is_settled()
    assert not (terraform.folder / "terraform.tfstate").exists()
    lock = {"ID": "theirs", "Operation": "OperationTypeApply", "Who": "a colleague"}
    path = f"/terraform/states/{region}"
    assert control.http.request("LOCK", path, json=lock).status_code == 200
    assert "already locked: ID=theirs" in terraform("plan", rc=1)
    control.http.request("UNLOCK", path, json=lock)
    terraform.destroy()
