"""Every field of upstream's clients works, is refused by name, or is named in a header."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, Literal

import pytest
from tests.conftest import ROOT
from tests.edge.api.fields.dialects import DIALECTS, Dialect, Verdict, hints
from tests.edge.support import Deployment, deployed

from skerry_edge.api.fields import HEADER
from skerry_edge.limits import Limits

# Those of models that think, which others have no use for.
OF_THINKERS: dict[str, Any] = {
    "chat_template_kwargs": {"enable_thinking": False},
    "reasoning": {"effort": "low", "summary": "auto"},
    "reasoning_effort": "low",
    "thinking": {"type": "adaptive"},
}
FIELDS = [(dialect, name) for dialect in DIALECTS for name in dialect.fields]


def example(kind: Any, neutral: tuple[Any, ...] = ()) -> Any:
    """A value of an annotation that asks for something."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return next(each for each in args if each not in neutral)
    if origin in (typing.Union, types.UnionType):
        return example(next(each for each in args if each is not type(None)), neutral)
    if typing.is_typeddict(kind):
        return {name: example(each) for name, each in hints(kind).items()}
    if origin in (typing.Required, typing.Annotated):
        return example(args[0], neutral)
    plain = {bool: True, int: 3, float: 0.5, str: "x", object: {"a": 1}}
    if kind in plain:
        return plain[kind]
    if origin is dict or "Dict" in str(kind) or "Mapping" in str(kind):
        return {"a": "b"}
    inside = tuple(each for value in neutral if isinstance(value, list) for each in value)
    return [example(args[0], inside)] if args else "x"


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("thinker"), Limits(), thinks=True) as deployment:
        yield deployment


@pytest.mark.parametrize(("dialect", "name"), FIELDS, ids=lambda each: getattr(each, "name", each))
def test_every_field_of_upstreams_clients(
    edge: Deployment, thinker: Deployment, dialect: Dialect, name: str
) -> None:
    verdict = dialect.verdict(name)
    assert verdict is not None, f"a new field of upstream's: {name}"
    if not dialect.path:  # needs a model of another kind: its body is decoded all the same
        assert verdict in ("works", "refused", "named")
        return
    path = edge.run_path.partition("/run/")[0] + dialect.path
    kinds = [each for kind in dialect.upstream if (each := hints(kind).get(name)) is not None]
    given = OF_THINKERS | dialect.works | dialect.least
    value = given.get(name) if verdict == "works" else example(kinds[0], dialect.neutral(name))
    if verdict == "works" and name in OF_THINKERS:
        reply = edge.client.post(path, json=dialect.least | {name: value})
        assert name in reply.headers[HEADER] or name == "reasoning", (
            "of a model that does not think"
        )
        edge = thinker
    reply = edge.client.post(path, json=dialect.least | {name: value})
    if verdict == "refused":
        assert reply.status_code == (405 if name == "lora" else 400), (value, reply.text)
        assert name in reply.text.lower()
        return
    assert reply.status_code == 200, (value, reply.text)
    named = reply.headers.get(HEADER, "").split(", ")
    assert (name in named) == (verdict == "named"), value


def test_the_table_of_fields_is_in_the_documentation() -> None:
    """A new field of an SDK changes it, and so does one that begins to work."""
    text = (ROOT / "docs/api.md").read_text()
    _, _, table = text.partition("| request | works | refused | named |\n")
    rows = [line.split(" | ")[0] for line in table.partition("\n\n")[0].splitlines()]
    assert rows[1:] == [f"| {dialect.name}" for dialect in DIALECTS]
    for package in ("openai", "anthropic", "cloudflare"):
        assert f"`{package}` {version(package)}" in text
    for dialect in DIALECTS:
        found: dict[Verdict, list[str]] = {"works": [], "refused": [], "named": []}
        for name in dialect.fields:
            verdict = dialect.verdict(name)
            assert verdict is not None, (dialect.name, name)
            found[verdict].append(f"`{name}`")
        row = " | ".join(", ".join(names) or "-" for names in found.values())
        assert f"| {dialect.name} | {row} |\n" in text, f"| {dialect.name} | {row} |"


def test_values_that_ask_for_nothing_are_taken(edge: Deployment) -> None:
    for body in (
        {"modalities": ["text"], "audio": None, "web_search_options": None, "store": False},
        {"reasoning_effort": "none", "metadata": {}, "user": ""},
    ):
        reply = edge.chat(**body)
        assert (reply.status_code, reply.headers.get(HEADER)) == (200, None), reply.text


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
def test_no_dialect_is_silent_about_others_fields(
    edge: Deployment, thinker: Deployment, dialect: Dialect
) -> None:
    """What servers of open models, and other dialects, have beside them."""
    if not dialect.path:
        return
    path = edge.run_path.partition("/run/")[0] + dialect.path
    for name, value in {
        "chat_template_kwargs": {"enable_thinking": False},
        "image": [1, 2, 3],
        "reasoning_effort": "low",
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "cache_control": {"type": "ephemeral"},
        "prompt_cache_key": "k",
        "service_tier": "flex",
        "mcp_servers": [{"type": "url", "url": "https://mcp.example", "name": "m"}],
        "modalities": ["audio"],
        "truncation": "auto",
    }.items():
        served = thinker if name in OF_THINKERS else edge
        reply = served.client.post(path, json=dialect.least | {name: value})
        if reply.status_code == 400:
            assert name in reply.text
        else:
            named = None if dialect.verdict(name) == "works" else name
            assert (reply.status_code, reply.headers.get(HEADER)) == (200, named), reply.text
