"""`limits.yaml`: what it says holds, and errors in it are reported with their place."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.edge.scripted_region import MODEL
from tests.edge.support import ALIAS, specs

from skerry_edge.gate.quotas import (
    NO_LIMITS,
    AccountAllowance,
    Allowance,
    Quotas,
    load_quotas,
)
from skerry_edge.money.caps import Budget, Caps
from skerry_regions.models.catalog import Catalog
from skerry_regions.models.located_yaml import YamlError

CATALOG = Catalog(specs())
ME, OTHER = "a" * 32, "b" * 32

FILE = f"""\
every_tenant: {{requests_per_minute: 300, concurrency: 16}}
tenants:
  - {{account: "{ME}", tokens_per_minute: 150_000}}
models:
  - model: "{ALIAS}"
    every_tenant: {{requests_per_minute: 60}}
    all_tenants: {{concurrency: 64}}
"""


def load(tmp_path: Path, text: str) -> Quotas:
    path = tmp_path / "limits.yaml"
    path.write_text(text)
    return load_quotas(path, CATALOG)


def test_no_file_limits_nothing(tmp_path: Path) -> None:
    quotas = load_quotas(tmp_path / "limits.yaml", CATALOG)
    assert [allowance for _, allowance in quotas.of(ME, MODEL)] == [NO_LIMITS]
    assert NO_LIMITS.is_unlimited
    assert quotas.budget(ME) is None


def test_what_a_request_must_keep_to(tmp_path: Path) -> None:
    quotas = load(tmp_path, FILE)
    of_model = [
        ((ME, MODEL), Allowance(requests_per_minute=60.0)),
        (("", MODEL), Allowance(concurrency=64)),
    ]
    key, own = next(quotas.of(ME, MODEL))
    assert key == (ME, "")
    assert (own.requests_per_minute, own.tokens_per_minute) == (None, 150_000)
    assert list(quotas.of(ME, MODEL))[1:] == of_model
    every = ((OTHER, ""), AccountAllowance(requests_per_minute=300.0, concurrency=16))
    assert list(quotas.of(OTHER, "@cf/another/model")) == [every]


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("every_tenant: {requests: 3}", 1, "every_tenant.requests: no such key"),
        ("every_tenant:\n  concurrency: 0", 2, "every_tenant.concurrency: Expected `int` >= 1"),
        ("every_tenant: {requests_per_minute: .nan}", 1, "requests_per_minute"),
        ("every_tenant: {requests_per_minute: -1}", 1, "requests_per_minute"),
        (
            f'tenants:\n  - {{account: "{ME}"}}\n  - {{account: "{ME}"}}',
            3,
            "tenants[1].account: " + ME + " is there twice",
        ),
        ("tenants: [{account: me}]", 1, "tenants[0].account"),
        ('models:\n  - model: "@cf/no/such"', 2, "models[0].model: no model '@cf/no/such'"),
        (
            f'models:\n  - model: "{MODEL}"\n  - model: "{ALIAS}"',
            3,
            f"models[1].model: {MODEL} is there twice",
        ),
        ("a: [", 1, "not valid YAML"),
    ],
)
def test_mistakes_say_where(tmp_path: Path, text: str, line: int, problem: str) -> None:
    with pytest.raises(YamlError) as error:
        load(tmp_path, text)
    assert str(error.value).startswith(f"{tmp_path / 'limits.yaml'}:{line}:")
    assert problem in str(error.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(YamlError, match="cannot be read: Is a directory"):
        load_quotas(tmp_path, CATALOG)


def test_accounts_have_budgets(tmp_path: Path) -> None:
    quotas = load(
        tmp_path,
        f'every_tenant: {{per_day: 5}}\ntenants:\n  - {{account: "{ME}", per_month: 100}}\n',
    )
    assert quotas.budget(ME) == Budget(ME, Caps(per_month=100.0), "account")
    assert quotas.budget(OTHER) == Budget(OTHER, Caps(per_day=5.0), "account")
    with pytest.raises(YamlError, match="per_day: no such key"):
        load(tmp_path, f'models:\n  - {{model: "{ALIAS}", every_tenant: {{per_day: 5}}}}\n')
