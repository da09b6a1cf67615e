"""What goes wrong between Terraform and the control plane, and that nothing is lost by it."""

from __future__ import annotations

import functools
import os
import signal

import pytest
from tests.e2e.command import until
from tests.e2e.control.control_client import ControlPlane
from tests.infra.terraform.command import (
    Fault,
    FaultyProxy,
    Terraform,
    interrupt,
    provider_block,
)
from tests.infra.terraform.configurations import LOST_MODEL, a_pool, a_region, within


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
    posts = proxy.seen("POST")
    assert len(posts) >= 2
    assert len({*posts}) == 1
    assert terraform.is_settled()


def test_what_an_unknown_outcome_left_is_found_again(
    terraform: Terraform, control: ControlPlane, proxy: FaultyProxy, region: str
) -> None:
    terraform.provider = terraform.provider.replace("max_retries = 4", "max_retries = 1")
    proxy.fail(Fault("POST", loses_answer=True, times=2))  # all that are tried
    terraform.write(a_region(region))
    told = terraform.apply(rc=1)
    assert "Whether the change was made is not known" in told
    assert control.http.get(f"/regions/{region}").status_code == 200
    terraform.apply()
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
    control.make("deployments", name=f"d-{region}", model=LOST_MODEL, pools=[f"{region}-p"])
    terraform.write(a_pool(region, wait_for_ready=False))
    terraform.apply()
    used = f"pool '{region}-p' is still used by deployment 'd-{region}'"
    assert used in terraform("destroy", "-auto-approve", rc=1)
    assert "skerry_pool.p" in terraform.state()
    control.http.delete(f"/deployments/d-{region}")
    terraform.destroy()


def test_who_cannot_be_reached_and_who_is_not_let_in(
    terraform: Terraform, control: ControlPlane, region: str
) -> None:
    block = provider_block("http://127.0.0.1:9", control.token, max_retries=0)
    for provider, told in {
        block: "http://127.0.0.1:9: [Errno 111] Connection refused",
        provider_block("http://h/path", "t"): "must be a URL without a path",
        terraform.provider.replace("skerry_", "skerry_0"): "The token is wrong, or has expired.",
    }.items():
        terraform.provider = provider
        terraform.write('data "skerry_platform_status" "s" {}\n')
        assert told in terraform("plan", rc=1)


def test_never_ready_is_told_and_replaced(
    terraform: Terraform, control: ControlPlane, region: str
) -> None:
    """A model that cannot be had, and a short patience."""
    text = within(region, model=LOST_MODEL)
    text = text.removesuffix("}\n") + '  timeouts { create = "3s" }\n}\n'
    terraform.write(text)
    told = terraform.apply(rc=1)
    assert "ModelUnavailable" in told
    assert terraform.state()["skerry_pool.p"]["tainted"]
    assert "1 to add, 0 to change, 1 to destroy" in terraform("plan")
    terraform.write(text.removesuffix("}\n") + "  lifecycle { create_before_destroy = true }\n}\n")
    assert "keep it with `terraform untaint`" in terraform.apply(rc=1)
    terraform.destroy()
    assert control.http.get(f"/pools/{region}-p").status_code == 404


def test_an_interrupted_apply_leaks_nothing(
    terraform: Terraform, control: ControlPlane, region: str
) -> None:
    control.make("regions", name=region, iata="FRA")
    terraform.write(a_pool(region, model=LOST_MODEL))
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
    stopped = control.process.pid  # takes connections and answers nothing, from the first create on
    stop = functools.partial(os.kill, stopped, signal.SIGSTOP)
    proxy.fail(Fault("POST", meanwhile=stop, carries_out=False))
    process = terraform.start("apply", "-auto-approve")
    until(lambda: not proxy.faults)
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
