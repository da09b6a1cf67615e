"""`issuers.yaml`: what it says is granted, and errors in it are reported with their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skerry_edge.gate.oidc.issuers import Issuer, is_trustworthy, load_issuers
from skerry_regions.models.located_yaml import YamlError

PLATFORM, ACCOUNT, OTHER = "a" * 32, "b" * 32, "c" * 32
FILE = f"""\
issuers:
  - name: acme
    issuer: https://login.example.com/realms/acme
    audience: [skerry]
    grants:
      - {{when: {{groups: operators, level: 3}}, account: platform, role: operator}}
      - when: {{"https://example.com/team": research}}
        account: {ACCOUNT}
      - {{when: {{scope: inference, verified: true}}, account: "{OTHER}", scopes: [run]}}
      - {{account_claim: org.account}}
"""


def load(tmp_path: Path, text: str) -> tuple[Issuer, ...]:
    path = tmp_path / "issuers.yaml"
    path.write_text(text)
    return load_issuers(path, PLATFORM)


def test_no_file_is_nobodys_login(tmp_path: Path) -> None:
    assert load_issuers(tmp_path / "issuers.yaml", PLATFORM) == ()


@pytest.mark.parametrize(
    ("claims", "account"),
    [
        ({"groups": ["x", "operators"], "level": 3}, PLATFORM),
        ({"groups": "operators", "level": 3}, PLATFORM),
        ({"groups": ["operators"], "level": "3"}, None),
        ({"groups": ["operators"], "level": 3.0}, None),
        ({"groups": ["operators"], "level": True}, None),
        ({"groups": ["operators"]}, None),
        ({"groups": {"operators": 1}, "level": 3}, None),
        ({"groups": "operators administrators", "level": 3}, None),
        ({"https://example.com/team": "research"}, ACCOUNT),
        ({"https://example": {"com/team": "research"}}, ACCOUNT),
        ({"scope": "read inference", "verified": True}, OTHER),
        ({"scope": "inferences", "verified": True}, None),
        ({"scope": "inference", "verified": 1}, None),
        ({"org": {"account": OTHER}}, OTHER),
        ({"org.account": OTHER}, OTHER),
        ({"org": {"account": PLATFORM}}, None),
        ({"org": {"account": OTHER.upper()}}, None),
        ({"org": {"account": OTHER + "0"}}, None),
        ({"org": {"account": [OTHER]}}, None),
        ({"org": OTHER}, None),
        ({}, None),
    ],
)
def test_the_first_grant_that_fits(
    tmp_path: Path, claims: dict[str, Any], account: str | None
) -> None:
    (issuer,) = load(tmp_path, FILE)
    granted = issuer.grant_of(claims, PLATFORM)
    assert (granted and granted[0]) == account


GRANT = f"grants: [{{account: {ACCOUNT}}}]"
ACME = f"name: acme, issuer: 'https://x.test', audience: [a], {GRANT}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("issuers: [{name: acme}]", "1: issuers[0]: Object missing required field `issuer`"),
        (f"issuers: [{{{ACME}, algorithms: [HS256]}}]", "issuers[0].algorithms[0]: Invalid"),
        (f"issuers: [{{{ACME}, algorithms: [none]}}]", "issuers[0].algorithms[0]: Invalid"),
        (f"issuers: [{{{ACME}, algorithms: []}}]", "issuers[0].algorithms: Expected"),
        (
            f"issuers: [{{{ACME}, client_id: other}}]",
            "issuers[0].client_id: has to be in the audience",
        ),
        (f"issuers: [{{{ACME}, verify: false}}]", "issuers[0].verify: no such key"),
        (f"issuers:\n  - {{{ACME}}}\n  - {{{ACME}}}", "3: issuers[1].name: is there twice"),
        (
            f"issuers:\n  - {{{ACME}}}\n  - {{{ACME.replace('acme', 'b')}}}",
            "3: issuers[1].issuer: is there twice",
        ),
        (
            f"issuers: [{{{ACME.replace('https:', 'http:')}}}]",
            "issuers[0].issuer: needs https, but for loopback",
        ),
        (
            f"issuers: [{{{ACME}, jwks_url: 'http://127.0.0.1.x.test/keys'}}]",
            "issuers[0].jwks_url: needs https, but for loopback",
        ),
        (
            f"issuers: [{{{ACME.replace('audience: [a]', 'audience: []')}}}]",
            "issuers[0].audience: Expected",
        ),
        (
            f"issuers: [{{{ACME.replace(GRANT, 'grants: [{}]')}}}]",
            "issuers[0].grants[0].account: name one of account and account_claim",
        ),
        (
            f"issuers: [{{{ACME.replace('}]', ', role: operator}]')}}}]",
            "issuers[0].grants[0].role: operators are of the account `platform`",
        ),
        (
            f"issuers: [{{{ACME.replace(GRANT, 'grants: [{account_claim: a, role: operator}]')}}}]",
            "issuers[0].grants[0].role: operators are of the account `platform`",
        ),
        (
            f"issuers: [{{{ACME.replace('}]', ', role: viewer, scopes: [run]}]')}}}]",
            "issuers[0].grants[0].scopes: a viewer reads",
        ),
        (
            f"issuers: [{{{ACME.replace('}]', ', scopes: [admin]}]')}}}]",
            "issuers[0].grants[0].scopes[0]: Invalid",
        ),
    ],
)
def test_a_file_that_cannot_be(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(YamlError) as raised:
        load(tmp_path, text)
    assert str(raised.value).startswith(f"{tmp_path}/issuers.yaml:")
    assert problem in str(raised.value)


def test_the_documented_file(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "limits.md").read_text()
    (block,) = (each for each in page.split("```yaml\n") if each.startswith("issuers:"))
    (issuer,) = load(tmp_path, block.partition("```")[0])
    assert [each.role for each in issuer.grants] == ["operator", "developer", None]


@pytest.mark.parametrize(
    ("url", "is_trusted"),
    [
        ("https://login.example.com", True),
        ("http://127.0.0.1:8080/x", True),
        ("http://[::1]/x", True),
        ("http://localhost/x", True),
        ("http://login.example.com", False),
        ("http://127.0.0.1.example.com", False),
        ("http://127.0.0.1@example.com", False),
        ("http://user@example.com#@127.0.0.1", False),
        ("ftp://127.0.0.1", False),
    ],
)
def test_whose_answers_can_be_changed_on_the_way(url: str, is_trusted: bool) -> None:
    assert is_trustworthy(url) is is_trusted
