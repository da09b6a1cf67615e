"""`skerry models` from the first listing to a served file of one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf as gguf_py
import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.regions.tiny_model import write_openable

from skerry_cli import main
from skerry_core.models.registry import FAMILIES
from skerry_regions.models.catalog import Catalog

DEFAULT = "@cf/huggingfacetb/smollm2-135m-instruct"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SKERRY_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return write_openable(tmp_path / "tiny.gguf")


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["models", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_catalog_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    listed = [(model["id"], model["installed"]) for model in ask(capsys, "list")]
    assert listed == [(spec.id, False) for spec in Catalog.load()]
    assert listed[0] == (DEFAULT, False)
    assert main(["models", "list"]) == 0
    assert DEFAULT in capsys.readouterr().out


def test_what_can_be_pulled_is_listed_with_what_has_no_runner(
    capsys: pytest.CaptureFixture[str],
) -> None:
    listed = {each["id"]: each for each in ask(capsys, "list", "--all")}
    assert listed[DEFAULT]["installed"] is False
    assert listed["@cf/meta/llama-3.2-1b-instruct"]["verified"] == "none"
    assert main(["models", "list", "--all"]) == 0
    rows = capsys.readouterr().out.splitlines()
    [known] = [row for row in rows if "@cf/meta/llama-3.2-1b-instruct " in row]
    [other] = [row for row in rows if "@cf/openai/gpt-oss-20b" in row]
    assert "bartowski/Llama-3.2-1B-Instruct-GGUF" in known
    assert "no runner yet" not in known
    assert ("no runner yet" in other) is ("gpt_oss" not in FAMILIES)
    for id_, has_runner in (
        ("@cf/google/gemma-7b-it-lora", False),
        ("@cf/qwen/qwen3-embedding-0.6b", True),
        ("@cf/baai/bge-m3", True),
    ):
        [row] = [row for row in rows if f"{id_} " in row]
        assert ("no runner yet" not in row) is has_runner


def test_a_file_of_ones_own_is_added_shown_and_checked(
    capsys: pytest.CaptureFixture[str], gguf: Path, home: Path
) -> None:
    added = ask(capsys, "add", str(gguf), "--as", "@cf/me/tiny")
    assert added["context_window"] == 64
    assert added["installed"]["weights"] == str(gguf)
    shown = ask(capsys, "show", "@cf/me/tiny")
    takes = shown.pop("takes")
    assert shown == added
    assert takes["disk"] == gguf.stat().st_size
    assert takes["kv_per_token"] == 2 * 2 * 32  # K and V of 32 dimensions in 16 bits, one layer
    assert [row["context"] for row in takes["needed"]] == [64]
    row = takes["needed"][0]
    assert row["8 streams"] - row["1 stream"] == 7 * 64 * takes["kv_per_token"]
    assert takes["fits"] is (row["1 stream"] <= takes["free"])
    assert ask(capsys, "pull", "@cf/me/tiny")[0]["weights"] == str(gguf)
    assert [each["id"] for each in ask(capsys, "verify")] == ["@cf/me/tiny"]
    assert main(["models", "show", "@cf/me/tiny", "--tokenizer-dir"]) == 0
    folder = Path(capsys.readouterr().out.strip())
    assert {"tokenizer.json", "tokenizer_config.json"} <= {each.name for each in folder.iterdir()}
    assert main(["models", "show", "@cf/me/tiny"]) == 0
    shown = capsys.readouterr().out
    assert "context_window: 64" in shown
    assert "fit this machine" in shown or "fits this machine" in shown


def test_a_model_is_copied_into_fewer_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "plain", tmp_path / "smaller"
    source.mkdir()
    (source / "config.json").write_text("{}")
    save_file({"norm": np.ones(64, np.float32)}, source / "model.safetensors")
    facts = ask(capsys, "compress", str(source), str(target))
    before, after = ((each / "model.safetensors").stat().st_size for each in (source, target))
    assert facts == {"path": str(target), "bytes_before": before, "bytes_after": after}
    assert main(["models", "compress", str(source), str(target)]) == 1
    assert capsys.readouterr().err.strip().endswith(f"{target}: exists already.")


@pytest.mark.parametrize(
    ("architecture", "format_", "message"),
    [
        ("llama", "Q2_K", "has format Q2_K, which is not supported, only F32"),
        ("llama", "Q3_K", "has format Q3_K, which is not supported, only F32"),
    ],
)
def test_what_the_engine_cannot_open_is_not_added(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    home: Path,
    architecture: str,
    format_: str,
    message: str,
) -> None:
    path = write_openable(tmp_path / "other.gguf", architecture, format_)
    assert main(["models", "add", str(path), "--as", "@cf/me/other"]) == 1
    assert message in capsys.readouterr().err
    assert "@cf/me/other" not in [spec.id for spec in Catalog.load(home)]


def test_every_other_architecture_of_llama_cpp_is_refused_by_its_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, home: Path
) -> None:
    """And those of ours that are others in GGUF files: Mistral and Mixtral are Llamas there."""
    supported = [name for name in FAMILIES.values() if name is not None]
    others = {*gguf_py.MODEL_ARCH_NAMES.values(), "mistral", "mixtral"} - set(supported)
    assert {"bert", "deepseek2", "gemma4", "gpt2", "llama4", "mamba2", "qwen3next", "t5"} <= others
    for name in sorted(others):
        path = write_openable(tmp_path / "other.gguf", name)
        assert main(["models", "add", str(path), "--as", "@cf/me/other"]) == 1
        message = f"general.architecture {name!r} is not supported, only {tuple(supported)}"
        assert message in capsys.readouterr().err
    assert "@cf/me/other" not in [spec.id for spec in Catalog.load(home)]


def test_a_gguf_file_that_embeds_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = write_openable(tmp_path / "embeds.gguf", pooling_type=3)
    assert main(["models", "add", str(path), "--as", "@cf/me/other"]) == 1
    assert (
        "embeds.gguf embeds (pooling_type 3): models that embed are read from safetensors"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "model_type",
    [
        "gpt2",  # not tried
        "deepseek_v2", "deepseek_v3", "kimi_k2",  # latent attention
        "qwen3_next", "granitemoehybrid", "mamba2", "jamba", "lfm2",  # a recurrent state
        "t5", "bart",  # encoder and decoder
        "apertus",  # xIELU
        "llama4",
    ],
)  # fmt: skip
def test_a_folder_is_refused_by_its_model_type_before_its_tensors(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model_type: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    save_file({"wte.weight": np.zeros((2, 2), np.float32)}, tmp_path / "model.safetensors")
    assert main(["models", "add", str(tmp_path), "--as", "@cf/me/other"]) == 1
    assert f"model_type '{model_type}' is not supported, only ('llama'" in capsys.readouterr().err


def test_an_activation_that_no_runner_has_is_refused_by_its_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "hidden_act": "xielu"}')
    save_file({"wte.weight": np.zeros((2, 2), np.float32)}, tmp_path / "model.safetensors")
    assert main(["models", "add", str(tmp_path), "--as", "@cf/me/other"]) == 1
    assert "hidden_act 'xielu' is not supported" in capsys.readouterr().err


def test_a_model_and_another_name_are_removed(
    capsys: pytest.CaptureFixture[str], gguf: Path, home: Path
) -> None:
    added = ask(capsys, "add", str(gguf), "--as", "@cf/me/tiny")
    ask(capsys, "add", "@cf/me/tiny", "--as", "@cf/me/other-name")
    ask(capsys, "add", "@cf/me/tiny", "--as", "@cf/me/third-name")
    gone = {"id": "@cf/me/other-name", "from_catalog": True, "from_disk": False}
    assert ask(capsys, "remove", "@cf/me/other-name") == [gone]
    assert Catalog.load(home).resolve("@cf/me/tiny").aliases == ("@cf/me/third-name",)
    gone = {"id": "@cf/me/tiny", "from_catalog": True, "from_disk": True}
    assert ask(capsys, "remove", "@cf/me/tiny") == [gone]
    assert [spec.id for spec in Catalog.load(home)] == [spec.id for spec in Catalog.load()]
    assert not Path(added["installed"]["tokenizer_dir"]).exists()
    assert gguf.exists()  # it was used where it lies


def test_an_id_that_comes_with_skerry_is_replaced_on_request_alone(
    capsys: pytest.CaptureFixture[str], gguf: Path, home: Path
) -> None:
    assert main(["models", "add", str(gguf), "--as", DEFAULT]) == 1
    assert "--replace" in capsys.readouterr().err
    assert ask(capsys, "add", str(gguf), "--as", DEFAULT, "--replace")["context_window"] == 64
    assert Catalog.load(home).resolve(DEFAULT).context_window == 64
    assert main(["models", "remove", DEFAULT]) == 0
    assert "comes with Skerry" in capsys.readouterr().out
    assert Catalog.load(home).resolve(DEFAULT).context_window == 8192


def test_a_model_is_served_under_another_name(
    capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    other = "@cf/meta/llama-3.1-8b-instruct"
    assert ask(capsys, "add", DEFAULT, "--as", other) == {"id": DEFAULT, "alias": other}
    assert Catalog.load(home).resolve(other).id == DEFAULT


def test_a_corrupt_file_is_named(capsys: pytest.CaptureFixture[str], gguf: Path) -> None:
    ask(capsys, "add", str(gguf), "--as", "@cf/me/tiny")
    with gguf.open("r+b") as file:
        file.truncate(100)
    assert main(["models", "verify"]) == 1
    assert f"{gguf} is truncated: 100 of" in capsys.readouterr().err


def test_damaged_packed_weights_are_named_and_removed(
    capsys: pytest.CaptureFixture[str], gguf: Path, home: Path
) -> None:
    ask(capsys, "add", str(gguf), "--as", "@cf/me/tiny")
    packed = home / "cache" / "tiny-0123.packed"
    packed.parent.mkdir(exist_ok=True)
    packed.write_bytes(b"SKERRYPK")
    assert main(["models", "verify"]) == 1
    captured = capsys.readouterr()
    assert "@cf/me/tiny is whole" in captured.out
    assert f"removed: {packed}" in captured.err
    assert not packed.exists()
    assert main(["models", "verify"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "@cf/nothing"], "No such model: @cf/nothing"),
        (["pull", "@cf/nothing"], "`skerry models list` shows all"),
        (["verify", DEFAULT], f"run `skerry models pull {DEFAULT}`"),
        (["show", DEFAULT, "--tokenizer-dir"], "is not installed"),
        (["add", "./no-such-file.gguf", "--as", "a"], "No such model"),
        (["add", DEFAULT, "--as", "bad name"], "aliases"),
        (["remove", "@cf/nothing"], "No such model"),
        (["remove", DEFAULT], "comes with Skerry and is not installed"),
    ],
)
def test_what_went_wrong_is_said(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["models", *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err


def test_a_broken_catalog_is_named(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    home.mkdir()
    (home / "catalog.yaml").write_text("models:\n  - id: a\n    oops: 1\n")
    assert main(["models", "list"]) == 1
    assert "catalog.yaml:3: models[0].oops: no such key" in capsys.readouterr().err


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["models", "add", "--help"])
    assert "example:\n  skerry models add ./my-model.gguf --as" in capsys.readouterr().out
