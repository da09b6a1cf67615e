"""Where the provider finds its control plane, and how it names what is wrong."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec import NODEFAULT
from msgspec.json import encode
from msgspec.structs import fields

from skerry_regions.control.desired.resources import BY_NAME
from skerry_terraform.kit.diagnostics import ProviderError
from skerry_terraform.kit.schema import Attr
from skerry_terraform.kit.values import UNKNOWN
from skerry_terraform.provider.client import ControlPlane
from skerry_terraform.provider.provider import SKERRY
from skerry_terraform.provider.refusals import RequestRefused, error_of, path_of
from skerry_terraform.provider.settings import SCHEMA, settings_of

NOT_ARGUMENTS = {("api_token", "parent")}  # whose token made it
NOTHING = dict.fromkeys(SCHEMA.attributes)
GIVEN = NOTHING | {"endpoint": "https://c:8443", "token": "t"}


def test_the_block_goes_before_the_environment_before_the_machine(tmp_path: Path) -> None:
    (tmp_path / ".skerry").mkdir()
    (tmp_path / ".skerry" / "config.json").write_text(
        json.dumps({"control_url": "http://[::1]:8788", "api_token": "written"})
    )
    ours = settings_of(NOTHING, {}, tmp_path)
    assert (ours.url, ours.token, ours.addresses[0].tls) == ("http://[::1]:8788", "written", None)
    environ = {"SKERRY_CONTROL_URL": "https://e", "SKERRY_API_TOKEN": "e"}
    environ |= {"SKERRY_CONTROL_MAX_RETRIES": "3"}
    theirs = settings_of(NOTHING, environ, tmp_path)
    assert (theirs.url, theirs.token, theirs.max_retries) == ("https://e:443", "e", 3)
    assert theirs.addresses[0].tls is not None
    block = settings_of(GIVEN, environ, tmp_path)
    assert (block.url, block.token) == ("https://c:8443", "t")
    with pytest.raises(ProviderError, match="token is missing"):  # ours is not for others to see
        settings_of(NOTHING | {"endpoint": "https://c"}, {}, tmp_path)


@pytest.mark.parametrize(
    ("config", "environ", "name", "told"),
    [
        (NOTHING, {}, "endpoint", "endpoint is missing"),
        (NOTHING | {"endpoint": "https://c"}, {}, "token", "token is missing"),
        (GIVEN | {"endpoint": "http://192.0.2.1"}, {}, "endpoint", "in the clear"),
        (GIVEN | {"endpoint": "http://c"}, {}, "endpoint", "in the clear"),
        (GIVEN | {"endpoint": UNKNOWN}, {}, "endpoint", "endpoint is not known yet"),
        (GIVEN | {"endpoint": "c:1"}, {}, "endpoint", "must be a URL"),
        (GIVEN | {"endpoint": "http://c:x"}, {}, "endpoint", "must be a URL"),
        (GIVEN | {"token": "hushed\n"}, {}, "token", "without a line's end"),
        (GIVEN | {"token": "hushed €"}, {}, "token", "must be one word"),
        (GIVEN | {"ca_file": "/none"}, {}, "ca_file", "cannot read certificates"),
        (GIVEN, {"SKERRY_CONTROL_TIMEOUT_SECONDS": "x"}, "timeout_seconds", "whole number"),
    ],
)
def test_what_is_missing_or_wrong_is_named(
    tmp_path: Path, config: dict[str, Any], environ: dict[str, str], name: str, told: str
) -> None:
    with pytest.raises(ProviderError, match=told) as raised:
        settings_of(config, environ, tmp_path)
    assert raised.value.path == (name,)
    assert "hushed" not in str(raised.value)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ProviderError, match="is damaged"):
        settings_of(NOTHING, {"SKERRY_HOME": str(tmp_path)}, tmp_path)


@pytest.mark.parametrize(
    ("field", "path"),
    [
        ("pools[1]", ("pools", 1)),
        ("a.b[2].c", ("a", "b", 2, "c")),
        ("name", ("name",)),
        ("", ()),
        ("[...]", ()),
        ("a b", ()),
    ],
)
def test_the_path_of_a_field(field: str, path: tuple[str | int, ...]) -> None:
    assert path_of(field) == path


@pytest.mark.parametrize(
    ("status", "field", "summary", "path"),
    [
        (401, None, "The control plane refuses the token", ()),
        (412, None, "The pool was changed since the plan was made", ()),
        (422, "pools[1]", "Invalid value for pools", ("pools", 1)),
        (422, "hidden", "The pool is refused", ()),
        (409, "name", "The pool is refused", ("name",)),
    ],
)
def test_a_refusal_is_told_where_it_belongs(
    status: int, field: str | None, summary: str, path: tuple[str | int, ...]
) -> None:
    error = error_of(RequestRefused(status, "why", field), "pool", {"pools", "name"})
    assert (error.summary, error.path) == (summary, path)


def test_a_stop_ends_the_retries(tmp_path: Path) -> None:
    """With one last try."""
    stop = threading.Event()
    stop.set()
    config = NOTHING | {"endpoint": "http://127.0.0.1:9", "token": "t", "max_retries": 100}
    client = ControlPlane(settings_of(config, {}, tmp_path), stop)
    with pytest.raises(ProviderError, match=r"127\.0\.0\.1:9: .*Connection refused"):
        client.status()


def test_every_field_of_a_resource_is_an_argument() -> None:
    """And where the control plane has a default, it is the provider's too."""
    resources = {resource.name: resource for resource in SKERRY.resources}
    assert resources.keys() == BY_NAME.keys()
    for name, kind in BY_NAME.items():
        members = {**resources[name].schema.attributes, **resources[name].schema.blocks}
        for each in fields(kind.spec):
            assert each.name in members or (name, each.name) in NOT_ARGUMENTS, (name, each.name)
            attr = members.get(each.name)
            if isinstance(attr, Attr) and attr.has_default and each.default is not NODEFAULT:
                assert attr.default == json.loads(encode(each.default)), each.name


def test_every_attribute_of_the_provider_is_documented() -> None:
    """In docs/terraform.md: each in the row of its resource."""
    rows: dict[str, str] = {}
    for row in (Path(__file__).parents[3] / "docs" / "terraform.md").read_text().splitlines():
        if row.startswith("| `"):
            rows.setdefault(row.split("`")[1], row)  # resources go before data sources
    common = {"id", "created_at", "timeouts"}
    for resource in SKERRY.resources:
        row = rows[f"skerry_{resource.name}"]
        names = resource.schema.type.attributes.keys() - common
        assert {name for name in names if f"`{name}`" not in row} == set(), resource.name
    assert {name for name in SCHEMA.attributes if name not in rows} == set()
    for function in SKERRY.functions:
        parameters = ", ".join(name for name, _, _ in function.parameters)
        assert f"provider::skerry::{function.name}({parameters})" in rows


def test_several_endpoints_are_tried_in_turn(tmp_path: Path) -> None:
    given = NOTHING | {"endpoint": "https://a:8788, http://127.0.0.1:1", "token": "t"}
    found = settings_of(given, {}, tmp_path)
    assert found.url == "https://a:8788,http://127.0.0.1:1"
    assert [each.tls is None for each in found.addresses] == [False, True]
    with pytest.raises(ProviderError, match="in the clear"):
        settings_of(given | {"endpoint": "https://a,http://b"}, {}, tmp_path)
