"""What every way of starting decides: credentials, models by default, addresses."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from tests.regions.tiny_model import write_bpe

from skerry_cli.home.errors import CannotStart
from skerry_cli.home.parts import (
    credentials,
    default_models,
    install_models,
    sentence,
    url_of,
)
from skerry_cli.home.state import Home, read_config
from skerry_edge.gate.tokens import TokenStore
from skerry_edge.http.server import listen
from skerry_edge.limits import Limits
from skerry_regions.models.catalog import Catalog, ModelFile, ModelSpec
from skerry_regions.models.catalog_edits import add_model
from skerry_regions.models.local_model import describe
from skerry_regions.models.store import ModelStore

URL = "http://127.0.0.1:8787"
OWN = ModelSpec(
    id="@cf/me/own",
    source="file:/nowhere",
    files=(ModelFile(name="own.gguf", size=1, sha256="0" * 64),),
    context_window=64,
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.create()
    return home


def test_account_and_token_are_made_once_and_kept(home: Home) -> None:
    tokens = TokenStore(home.tokens)
    first = credentials(home, tokens, URL)
    principal = tokens.authenticate(first.api_token)
    assert principal is not None
    assert principal.account_id == first.account_id
    assert read_config(home) == first
    moved = credentials(home, TokenStore(home.tokens), "http://127.0.0.1:1")
    assert (moved.account_id, moved.api_token) == (first.account_id, first.api_token)
    assert read_config(home) == moved
    assert len(tokens.records()) == 1


def test_a_revoked_token_is_replaced_for_the_same_account(home: Home) -> None:
    tokens = TokenStore(home.tokens)
    first = credentials(home, tokens, URL)
    tokens.revoke(tokens.records()[0].id)
    second = credentials(home, tokens, URL)
    assert second.account_id == first.account_id
    assert second.api_token != first.api_token
    assert tokens.authenticate(second.api_token) is not None


def test_by_default_ones_own_models_and_the_installed_packaged_ones_are_served(home: Home) -> None:
    packaged = [spec.id for spec in Catalog.load()]
    store = ModelStore(home.root)

    def default() -> list[str]:
        return default_models(Catalog.load(home.root), store)

    assert default() == packaged  # a new home gets them all
    add_model(home.root, OWN)
    assert default() == [*packaged, OWN.id]
    for count, id_ in enumerate(packaged, 1):
        folder = home.root / "models" / id_.replace("/", "+")
        folder.mkdir(parents=True)
        (folder / "model.json").touch()
        assert default() == [*packaged[:count], OWN.id]


def test_a_model_that_is_gone_or_truncated_is_left_out(home: Home, tmp_path: Path) -> None:
    whole, cut = (write_bpe(tmp_path / f"{name}.gguf") for name in ("whole", "cut"))
    store = ModelStore(home.root)
    for path in (whole, cut):
        spec = describe(path, f"@cf/me/{path.stem}")
        store.pull(spec, lambda what, share: None)
        add_model(home.root, spec)
    add_model(home.root, OWN)
    with cut.open("r+b") as file:
        file.truncate(100)
    names = ["@cf/me/cut", "@cf/me/own", "@cf/me/whole"]
    installed = install_models(names, home, lambda what, share: None)
    assert [model.spec.id for model in installed.models] == ["@cf/me/whole"]
    assert [(each.model, each.reason) for each in installed.left_out] == [
        ("@cf/me/cut", "a file of it is truncated"),
        ("@cf/me/own", "its files are gone"),
    ]
    assert f"{cut} is truncated: 100 of" in sentence(installed.left_out[0])
    assert "skerry models remove @cf/me/own" in sentence(installed.left_out[1])


def test_models_that_cannot_be_had_are_named(home: Home) -> None:
    add_model(home.root, OWN)
    for name, what in (("@cf/no/such", "models list"), (OWN.id, "/nowhere/own.gguf is missing")):
        with pytest.raises(CannotStart, match=what):
            install_models([name], home, lambda what, share: None)


@pytest.mark.parametrize(
    ("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("::1", "[::1]")]
)
def test_the_url_names_the_port_really_taken(host: str, shown: str) -> None:
    try:
        listener = listen(host, 0, Limits())
    except OSError:
        pytest.skip(f"this machine has no {host}")
    with listener:
        port = listener.getsockname()[1]
        expected = f"http://{shown}:{port}"
        assert url_of(listener) in (expected, f"http://[::1]:{port}")
        with socket.create_connection(listener.getsockname()[:2]):
            pass
