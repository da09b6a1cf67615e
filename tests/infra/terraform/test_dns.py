"""DNS zones, their records, and what they answer: real Terraform, a real control plane."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.command import Skerry
from tests.e2e.control.control_client import ControlPlane
from tests.infra.terraform.command import Terraform, attached, provider_block, terraform_binary

from skerry_terraform.provider.provider import SKERRY

MODULE = Path(__file__).parents[3] / "infra" / "terraform" / "modules" / "platform"
REGIONS = """\
resource "skerry_region" "r" {
  for_each = toset(["FRA", "IAD"])
  name     = lower(each.key)
  iata     = each.key
}

resource "skerry_edge_node" "e" {
  for_each  = { fra = "192.0.2.1", iad = "192.0.2.2" }
  name      = "edge-${each.key}"
  region    = skerry_region.r[upper(each.key)].name
  addresses = [each.value]
}
"""
ZONE = """\
resource "skerry_dns_zone" "z" {
  name = "example.test"
  nameservers {
    name      = "ns1"
    addresses = ["192.0.2.53"]
  }
  nameservers { name = "ns.else." }
  nets {
    net    = "198.51.100.0/24"
    region = skerry_region.r["FRA"].name
  }
  spread  = 0.01
  health  = { failures = 4 }
  regions = [{ name = skerry_region.r["FRA"].name, weight = 2 }]
  nets {
    net         = "203.0.113.0/24"
    coordinates = [40.7, -74.0]
  }
}

resource "skerry_dns_record" "www" {
  zone   = skerry_dns_zone.z.name
  name   = "www"
  type   = "A"
  values = ["192.0.2.80", "192.0.2.81"]
}

resource "skerry_dns_record" "apex" {
  zone   = skerry_dns_zone.z.name
  name   = "@"
  type   = "TXT"
  ttl    = 60
  values = ["\\"v=spf1 -all\\""]
}
"""
ANSWERS = """\
data "skerry_dns_answer" "near" {
  name       = "ai.example.test"
  client     = "198.51.100.7"
  depends_on = [skerry_dns_zone.z, skerry_edge_node.e]
}

data "skerry_dns_answer" "www" {
  name       = "www.example.test"
  depends_on = [skerry_dns_record.www]
}

data "skerry_dns_zone" "z" {
  id = skerry_dns_zone.z.id
}
"""


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    terraform_binary()
    home = tmp_path_factory.mktemp("control") / "home"
    home.mkdir(mode=0o700)
    control = ControlPlane(Skerry(home))
    yield control
    control.stop()


@pytest.fixture
def terraform(tmp_path: Path, control: ControlPlane) -> Iterator[Terraform]:
    url = str(control.http.base_url).removesuffix("/control/v1/")
    block = provider_block(url, control.token, max_retries=4)
    with attached(tmp_path / "work", SKERRY, block) as terraform:
        yield terraform


def test_a_zone_comes_changes_and_goes(terraform: Terraform, control: ControlPlane) -> None:
    terraform.write(REGIONS + ZONE + ANSWERS)
    assert "7 added" in terraform.apply()
    assert terraform.is_settled()
    state = terraform.state()
    near, www = (state[f"data.skerry_dns_answer.{name}"] for name in ("near", "www"))
    assert near["regions"] == ["fra", "iad"]
    assert (near["values"], near["scope"], near["status"]) == (["192.0.2.1"], 24, "NOERROR")
    assert (www["values"], www["ttl"]) == (["192.0.2.80", "192.0.2.81"], 300)
    assert state["data.skerry_dns_zone.z"]["nets"][1]["coordinates"] == [40.7, -74.0]
    zone = control.get("dns_zones/example.test")
    assert (zone["health"]["failures"], zone["regions"][0]["weight"]) == (4, 2)
    assert state["skerry_dns_record.apex"]["id"] == "example.test:@:TXT"

    terraform.write(REGIONS + ZONE.replace('"192.0.2.80", ', "").replace("ttl    = 60", ""))
    assert "0 added, 2 changed, 0 destroyed" in terraform.apply()
    assert terraform.is_settled()
    assert control.get("dns_records/example.test:www:A")["values"] == ["192.0.2.81"]
    assert control.get("dns_records/example.test:@:TXT")["ttl"] == 300

    terraform("state", "rm", "skerry_dns_record.www")
    terraform("import", "skerry_dns_record.www", "example.test:www:A")
    assert terraform.is_settled()

    terraform.write(REGIONS + ZONE.replace('"www"\n  type', '"web"\n  type'))
    assert "1 added, 1 changed, 1 destroyed" in terraform.apply()  # another record
    assert "7 destroyed" in terraform.destroy()
    assert control.get("dns_zones")["items"] == []


def test_routing_comes_changes_and_goes(terraform: Terraform, control: ControlPlane) -> None:
    steering = """\
resource "skerry_routing" "r" {
  steer = { policy = "redirect", margin = 0.1 }
}
"""
    terraform.write(steering)
    assert "1 added" in terraform.apply()
    assert terraform.is_settled()
    assert control.get("routing/platform")["steer"]["drain_seconds"] == 4
    terraform.write('resource "skerry_routing" "r" {\n  router = { candidates = "all" }\n}\n')
    assert "1 changed" in terraform.apply()
    assert terraform.is_settled()
    found = control.get("routing/platform")
    assert (found["steer"], found["router"]) == (None, {"candidates": "all"})
    assert "1 destroyed" in terraform.destroy()


def test_the_platform_module_has_routing(terraform: Terraform, control: ControlPlane) -> None:
    terraform.write(f"""\
module "p" {{
  source  = "{MODULE}"
  regions = {{ fra = {{ iata = "FRA", pools = {{}}, edges = {{}} }} }}
  routing = {{ emulate = {{}}, steer = {{ policy = "advise" }} }}
}}
""")
    terraform("get")
    assert "2 added" in terraform.apply()
    assert terraform.is_settled()
    found = control.get("routing/platform")
    assert (found["emulate"], found["steer"]["policy"]) == ({"rtt": "links"}, "advise")
    assert "2 destroyed" in terraform.destroy()


def test_a_misspelt_argument_is_not_dropped(terraform: Terraform) -> None:
    terraform.write(REGIONS + ZONE.replace("coordinates = [40.7, -74.0]", 'residancy = "eu"'))
    told = terraform("validate", rc=1)
    assert 'An argument named "residancy" is not expected here. Did you mean "residency"?' in told


def test_mistakes_are_shown_where_they_are(terraform: Terraform) -> None:
    bad = ZONE.replace("192.0.2.81", "192.0.2.999").replace("ttl    = 60", "ttl    = -1")
    terraform.write(REGIONS + bad)
    [ttl] = terraform.diagnostics("plan")
    assert (ttl["summary"], ttl["snippet"]["code"].strip()) == (
        "Invalid value for ttl", "ttl    = -1",
    )  # fmt: skip
    terraform.write(REGIONS + bad.replace("ttl    = -1", ""))
    [value] = terraform.diagnostics("apply", "-auto-approve")
    assert "no A record" in value["detail"]
    assert "192.0.2.999" in value["snippet"]["code"]
    terraform.destroy()
