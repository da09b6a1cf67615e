"""A stand-in refuses what the published schema refuses, and makes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.infra.terraform.command import Terraform
from tests.infra.terraform.modules.stand_in import stand_in
from tests.infra.terraform.reattached import reattach

SCHEMA = Path(__file__).parents[4] / "infra" / "terraform" / "schemas" / "aws.json"
RESOURCE = 'resource "aws_launch_template" "x" {{\n{body}\n}}\n'


@pytest.fixture
def terraform(tmp_path: Path) -> Iterator[Terraform]:
    address, provider = stand_in(SCHEMA)
    with reattach(provider, address) as served:
        yield Terraform(tmp_path, {"TF_REATTACH_PROVIDERS": json.dumps(served.config)})


def write(terraform: Terraform, body: str) -> None:
    (terraform.folder / "main.tf").write_text(RESOURCE.format(body=body))
    terraform("init")


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ('instance_typ = "g6.xlarge"', 'Did you mean "instance_type"?'),
        ('instance_type = ["g6.xlarge"]', "string required"),
        ("metadata_options {}\nmetadata_options {}", "No more than 1"),
        ("latest_version = 2", "latest_version is read-only"),
    ],
)
def test_what_the_schema_does_not_have(terraform: Terraform, body: str, complaint: str) -> None:
    write(terraform, body)
    assert complaint in terraform("validate", rc=1)


def test_what_is_required(terraform: Terraform) -> None:
    (terraform.folder / "main.tf").write_text('resource "aws_subnet" "x" {}\n')
    terraform("init")
    assert 'The argument "vpc_id" is required' in terraform("validate", rc=1)


def test_nothing_is_made(terraform: Terraform) -> None:
    write(terraform, 'instance_type = "g6.xlarge"')
    assert "is only a schema" in terraform.apply(rc=1)
    assert terraform("state", "list") == ""
