"""SentencePiece's tokenizers out of GGUF and `tokenizer.model`, against SentencePiece itself."""

from __future__ import annotations

import json
import random
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import Tokenizer

from skerry_regions.models import gguf_tokenizer
from skerry_regions.models.foreign.sentencepiece_model import SentencePieceError, parse
from skerry_regions.models.local_model import describe
from skerry_regions.models.problems import UnsupportedModel
from skerry_regions.models.tokenizer_files import write_from_directory

_SCRIPTS = (
    *((0x20, 0x7E), (0xA0, 0x17F), (0x370, 0x3FF), (0x400, 0x4FF), (0x590, 0x5FF), (0x600, 0x6FF)),
    *((0x900, 0x97F), (0xE00, 0xE7F), (0x10A0, 0x10FF), (0x2000, 0x206F), (0x3040, 0x30FF)),
    *((0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x1F300, 0x1F6FF), (0x300, 0x36F)),
)
_WORDS = (
    *("the", "quick", "Hello", "naïve", "Straße", "été", "Привет", "мир", "שלום", "مرحبا"),
    *(
        "नमस्ते",
        "สวัสดี",
        "こんにちは",
        "世界",
        "안녕하세요",
        "123",
        "4567",
        "def",
        "foo(x):",
        "x+1",
        "😀",
    ),
    *("<s>", "</s>", "[INST]", "▁", "<0x41>", "\t"),
)


def strings(count: int = 2500) -> list[str]:
    """Texts of many scripts: characters of one, or words of several with odd spaces."""
    rng = random.Random(0)
    made = list[str]()
    for _ in range(count):
        if rng.random() < 0.5:
            low, high = rng.choice(_SCRIPTS)
            made.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 30))))
        else:
            between = rng.choice((" ", "  ", "\n", "\t", " "))
            words = between.join(rng.choice(_WORDS) for _ in range(rng.randint(1, 20)))
            made.append(" " * rng.randint(0, 3) + words + " " * rng.randint(0, 2))
    return made


STRINGS = strings()


def trained(folder: Path, kind: str = "bpe", **options: Any) -> Path:
    """A model of our strings; as Llama's, unless `options` say otherwise."""
    prefix = folder / kind
    as_llama: dict[str, Any] = {
        "normalization_rule_name": "identity", "remove_extra_whitespaces": False,
        "split_digits": True, "byte_fallback": True,
    }  # fmt: skip
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(STRINGS), model_prefix=str(prefix), model_type=kind,
        vocab_size=8000 if kind == "bpe" else 6000, character_coverage=0.98,
        hard_vocab_limit=False, minloglevel=2, **as_llama | options,
    )  # fmt: skip
    return prefix.with_suffix(".model")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("llama"))


def converted(path: Path) -> Tokenizer:
    metadata = gguf_tokenizer.metadata_of(parse(path.read_bytes(), path.name))
    told, form = gguf_tokenizer.convert(metadata)
    assert form == "byte_fallback"
    return Tokenizer.from_str(json.dumps(told))


def differing(path: Path, *, keeps_spaces: bool) -> list[str]:
    """Texts that become other tokens than SentencePiece's, or are not spelled as it spells them
    where nothing of them is lost."""
    tokenizer = converted(path)
    peer = sentencepiece.SentencePieceProcessor(model_file=str(path))
    others = list[str]()
    for text in STRINGS:
        ids = peer.encode(text)
        told = tokenizer.encode(text, add_special_tokens=False).ids
        spelled = tokenizer.decode(ids, skip_special_tokens=False)
        if told != ids or (keeps_spaces and spelled != peer.decode(ids)):
            others.append(text)
    return others


OPTIONS: dict[str, dict[str, Any]] = {
    "as Llama's": {},
    "without a space in front": {"add_dummy_prefix": False},
    "extra spaces removed": {"remove_extra_whitespaces": True},
    "normalised": {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True},
}


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("case", OPTIONS)
def test_the_tokens_are_those_of_sentencepiece(tmp_path: Path, kind: str, case: str) -> None:
    """But for texts with control tokens' names, which a template may write and a user may not, and
    for marks that combine across characters, where `tokenizers` normalises by graphemes."""
    keeps_spaces = "remove_extra_whitespaces" not in OPTIONS[case]
    others = differing(trained(tmp_path, kind, **OPTIONS[case]), keeps_spaces=keeps_spaces)
    others = [text for text in others if not any(name in text for name in ("<s>", "</s>"))]
    if case == "normalised":
        assert len(others) < len(STRINGS) / 200
        others = [text for text in others if not any(map(unicodedata.combining, text))]
    assert others == []


def test_a_model_file_is_read_as_sentencepiece_reads_it(llama: Path) -> None:
    model = parse(llama.read_bytes(), llama.name)
    peer = sentencepiece.SentencePieceProcessor(model_file=str(llama))
    ids = range(peer.vocab_size())
    assert model.pieces == [peer.id_to_piece(id_) for id_ in ids]
    assert model.scores == [peer.get_score(id_) for id_ in ids]
    assert [kind == 6 for kind in model.types] == [peer.is_byte(id_) for id_ in ids]
    assert [kind == 3 for kind in model.types] == [peer.is_control(id_) for id_ in ids]
    assert (model.kind, model.unknown_id, model.adds_space_prefix) == ("bpe", 0, True)


def test_a_damaged_model_file_is_refused(llama: Path) -> None:
    data = llama.read_bytes()
    for cut in (1, 7, 100, 4321, len(data) - 1):
        with pytest.raises(SentencePieceError, match=r"^x\.model "):
            parse(data[:cut], "x.model")
    for other in (b"", b"GGUF" * 50, bytes(100), b"\xff" * 30):
        with pytest.raises(SentencePieceError, match=r"^x\.model"):
            parse(other, "x.model")


CONFIG = {
    "model_type": "mistral", "vocab_size": 8002, "max_position_embeddings": 512,
    "architectures": ["MistralForCausalLM"],
}  # fmt: skip


def added(content: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"content": content, "special": True, **flags}


def folder_of(tmp_path: Path, llama: Path) -> Path:
    """A model of which only `tokenizer.model` says how to tokenise, with two tokens added."""
    folder = tmp_path / "model"
    folder.mkdir()
    shutil.copyfile(llama, folder / "tokenizer.model")
    size = len(parse(llama.read_bytes(), "").pieces)
    settings = {
        "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True,
        "chat_template": "{{ messages }}",
        "added_tokens_decoder": {
            "1": added("<s>"), str(size): added("<|im_end|>"), str(size + 1): added("<|im_start|>"),
        },
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_a_folder_with_tokenizer_model_is_taken(tmp_path: Path, llama: Path) -> None:
    folder, home = folder_of(tmp_path, llama), tmp_path / "home"
    home.mkdir()
    names = [file.name for file in describe(folder, "@cf/me/mistral").files]
    assert "tokenizer.model" in names
    assert "tokenizer.json" not in names
    metadata = write_from_directory(folder, home, "digest")
    assert (metadata.token_form, metadata.bos_id, metadata.eos_id) == ("byte_fallback", 1, 2)
    tokenizer = Tokenizer.from_file(str(home / "tokenizer.json"))
    peer = sentencepiece.SentencePieceProcessor(model_file=str(llama))
    size = peer.vocab_size()
    assert metadata.stop_token_ids == (2, size)
    told = tokenizer.encode("Hello world").ids
    assert told == [1, *peer.encode("Hello world")]
    assert tokenizer.encode("<|im_start|>", add_special_tokens=False).ids == [size + 1]


def test_a_folder_without_any_tokenizer_is_refused(tmp_path: Path, llama: Path) -> None:
    folder = folder_of(tmp_path, llama)
    (folder / "tokenizer.model").write_bytes(b"not one")
    with pytest.raises(UnsupportedModel, match=r"tokenizer\.model is not a SentencePiece model"):
        write_from_directory(folder, tmp_path, "digest")
    (folder / "tokenizer.model").unlink()
    with pytest.raises(UnsupportedModel, match=r"it has no tokenizer\.json"):
        describe(folder, "@cf/me/mistral")
