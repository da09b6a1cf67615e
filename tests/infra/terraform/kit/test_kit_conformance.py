"""Real Terraform against a provider with every kind of value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.infra.terraform.command import Terraform, attached
from tests.infra.terraform.kit.echo import Store, echo_provider

EVERYTHING = """\
resource "terraform_data" "known_later" {
  input = "later"
}

resource "skerry_echo" "e" {
  text      = "grüße \\u0001 \\U0001f30a"
  number    = 0.12345678901234567890123456789
  names     = ["b", "a", terraform_data.known_later.output]
  tags      = ["b", "x-${terraform_data.known_later.output}", "a"]
  labels    = { tenth = 0.1, huge = 100000000000000000000000000000, least = -9223372036854775809 }
  secret_wo = "never-in-the-state"
  point     = { x = 1e-7 }
  part { name = "one" }
  part { name = terraform_data.known_later.output }
}
"""


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def terraform(tmp_path: Path, store: Store) -> Iterator[Terraform]:
    with attached(tmp_path / "work", echo_provider(store)) as terraform:
        yield terraform
    assert store.is_released


def test_every_kind_of_value_is_kept(terraform: Terraform, store: Store) -> None:
    terraform.write(EVERYTHING)
    terraform.apply()
    assert terraform.is_settled()
    (made,) = store.objects.values()
    assert made["text"] == "grüße \x01 🌊"
    assert str(made["number"]) == "0.12345678901234567890123456789"
    assert made["labels"] == {"tenth": 0.1, "huge": 10**29, "least": -(2**63) - 1}
    assert (made["names"], made["point"]) == (["b", "a", "later"], {"x": 1e-7, "kind": "flat"})
    assert [part["name"] for part in made["part"]] == ["one", "later"]
    assert store.secrets == ["never-in-the-state"]
    assert "never-in-the-state" not in (terraform.folder / "terraform.tfstate").read_text()

    terraform.write(EVERYTHING.replace('["b", "a",', '["a", "b",').replace('"one"', '"two"'))
    assert "0 added, 1 changed, 0 destroyed" in terraform.apply()
    (made,) = store.objects.values()
    assert made["names"] == ["a", "b", "later"]


def test_the_order_of_a_set_is_no_change(terraform: Terraform, store: Store) -> None:
    terraform.write('resource "skerry_echo" "e" {\n  tags = ["a", "b"]\n}\n')
    terraform.apply()
    (made,) = store.objects.values()
    made["tags"] = ["b", "a"]
    assert terraform.is_settled()


def test_a_bug_after_the_creation_taints(terraform: Terraform, store: Store) -> None:
    terraform.write('resource "skerry_echo" "e" {\n  fails = "bug"\n}\n')
    assert "ZeroDivisionError: a slip" in terraform.apply(rc=1)
    assert terraform.state()["skerry_echo.e"]["tainted"]
    terraform.write('resource "skerry_echo" "e" {}\n')
    assert "1 added, 0 changed, 1 destroyed" in terraform.apply()
    assert len(store.objects) == 1


def test_an_old_state_is_upgraded(terraform: Terraform, store: Store) -> None:
    terraform.write('resource "skerry_echo" "e" {\n  text = "kept"\n}\n')
    terraform.apply()
    path = terraform.folder / "terraform.tfstate"
    state = json.loads(path.read_text())
    (instance,) = state["resources"][0]["instances"]
    instance["schema_version"] = 1
    instance["attributes"]["title"] = instance["attributes"].pop("text")
    path.write_text(json.dumps(state))
    assert terraform.is_settled()


def test_functions_and_data(terraform: Terraform) -> None:
    terraform.write(
        'data "skerry_echo" "d" { text = "four" }\n'
        'output "o" { value = provider::skerry::half(data.skerry_echo.d.length - 1) }\n'
    )
    terraform.apply()
    assert json.loads(terraform("output", "-json"))["o"]["value"] == 1.5
    terraform.write('output "o" { value = provider::skerry::half(-1) }\n')
    assert "must not be negative" in terraform("plan", rc=1)
