"""What is installed besides a GGUF: tokenizers of several kinds, folders, sampling's defaults."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.regions.models.hub.pulls import ignore
from tests.regions.tiny_model import TEMPLATE, write_bpe, write_sentencepiece

from skerry_regions.models.catalog import SamplingDefaults
from skerry_regions.models.local_model import describe
from skerry_regions.models.problems import (
    UnsupportedModel,
)
from skerry_regions.models.store import ModelStore


def test_sentencepiece_is_converted(store: ModelStore, gguf: Path) -> None:
    from tokenizers import Tokenizer

    files = store.pull(describe(write_sentencepiece(gguf.parent / "spm.gguf"), "a/b"), ignore)
    assert (files.token_form, files.strips_space, files.add_bos) == ("byte_fallback", True, True)
    assert (files.bos_id, files.eos_id, files.unk_id) == (1, 2, 0)
    tokenizer = Tokenizer.from_file(str(files.tokenizer))
    encode = tokenizer.encode("aba é", add_special_tokens=False)
    assert encode.tokens == ["▁", "a", "ba", "▁", "<0xC3>", "<0xA9>"]  # "ba" has the best score
    assert tokenizer.decode(encode.ids) == "aba é"
    assert tokenizer.encode("ab").tokens == ["<s>", "▁ab"]


def test_byte_level_bpe_is_converted(store: ModelStore, gguf: Path) -> None:
    from tokenizers import Tokenizer

    files = store.pull(describe(gguf, "a/b"), ignore)
    tokenizer = Tokenizer.from_file(str(files.tokenizer))
    assert tokenizer.encode("ab ab12</s>").tokens == ["ab", "Ġab", "1", "2", "</s>"]
    config = json.loads((files.directory / "tokenizer_config.json").read_text())
    assert (config["bos_token"], config["eos_token"]) == ("<s>", "</s>")
    assert config["chat_template"] == TEMPLATE
    assert config["model_max_length"] == 64


def test_a_safetensors_folder_is_taken_as_it_is(
    store: ModelStore, gguf: Path, tmp_path: Path
) -> None:
    made = store.pull(describe(gguf, "a/b"), ignore)
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(made.tokenizer.read_bytes())
    config = {"model_type": "llama", "max_position_embeddings": 64, "vocab_size": 100}
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": [0, 1]}))
    tokenizer_config = {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>"},
        "chat_template": [
            {"name": "tool_use", "template": "x"},
            {"name": "default", "template": "y"},
        ],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    (folder / "model.safetensors").write_bytes(b"not looked at here")
    spec = describe(folder, "@cf/me/hf")
    files = store.pull(spec, ignore)
    assert files.weights == folder
    assert (files.bos_id, files.eos_id, files.stop_token_ids) == (1, 0, (0, 1))
    assert files.chat_template == "y"
    assert files.tokenizer_digest == made.tokenizer_digest
    assert files.weights_digest != made.weights_digest


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer.json", "{}", "no BPE vocabulary"),
        ("tokenizer.json", "[]", "not a JSON object"),
        ("tokenizer.json", "[" * 100_000, "not JSON"),
        ("config.json", '{"max_position_embeddings": 64}', "vocabulary size is missing"),
        ("tokenizer.json", '{"model": 7}', "has another form"),
    ],
)
def test_a_folder_of_another_kind_is_refused(
    store: ModelStore, tmp_path: Path, file: str, content: str, message: str
) -> None:
    config = {"max_position_embeddings": 64, "vocab_size": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    vocab = {"model": {"vocab": {"a": 0}}, "decoder": {"type": "ByteLevel"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(vocab))
    (tmp_path / "model.safetensors").write_bytes(b"x")
    (tmp_path / file).write_text(content)
    with pytest.raises(UnsupportedModel, match=message):
        store.pull(describe(tmp_path, "a/b"), ignore)


def test_sampling_defaults_are_read_from_the_files(tmp_path: Path, gguf: Path) -> None:
    assert describe(gguf, "a").sampling == SamplingDefaults()
    stated = write_bpe(
        tmp_path / "stated.gguf",
        general__sampling__temp=0.5,
        general__sampling__top_k=20,
        general__sampling__penalty_repeat=9.0,  # no request may have that
    )
    assert describe(stated, "a").sampling == SamplingDefaults(temperature=0.5, top_k=20)
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text("{}")
    (folder / "config.json").write_text('{"max_position_embeddings": 64}')
    (folder / "model.safetensors").write_bytes(b"x")
    assert describe(folder, "a").sampling == SamplingDefaults()
    told = {"temperature": 0.7, "top_p": 0.8, "top_k": 0, "repetition_penalty": 1.05, "x": 1}
    (folder / "generation_config.json").write_text(json.dumps(told))
    assert describe(folder, "a").sampling == SamplingDefaults(
        temperature=0.7, top_p=0.8, repetition_penalty=1.05
    )


def test_describe_refuses_what_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"no such thing at all....")
    with pytest.raises(UnsupportedModel, match=r"x\.gguf: not a GGUF file"):
        describe(tmp_path / "x.gguf", "a")
    with pytest.raises(UnsupportedModel, match=r"has no config\.json"):
        describe(tmp_path, "a")
