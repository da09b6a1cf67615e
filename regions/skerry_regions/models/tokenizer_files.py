"""At installation: write a model's tokenizer once as `tokenizer.json`, and its `ModelMetadata`.

Starting a server then never parses a vocabulary of GGUF strings. The directory also gets a
`tokenizer_config.json`, so that transformers' `AutoTokenizer.from_pretrained` reads it.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from skerry_regions.models import gguf_tokenizer
from skerry_regions.models.foreign import sentencepiece_model
from skerry_regions.models.foreign.gguf_header import GGUFError, Value, read_metadata
from skerry_regions.models.foreign.json_files import read_json
from skerry_regions.models.foreign.tokenizer_json import (
    decoder_steps,
    prepends,
    strips_space_of,
    token_text,
)
from skerry_regions.models.model_files import ModelMetadata, TokenForm, digest
from skerry_regions.models.problems import UnsupportedModel

Json = dict[str, Any]

MAX_TEMPLATE_LENGTH: Final = 64 << 10  # characters


def write_from_gguf(
    weights: Path, directory: Path, weights_digest: str, template: str | None = None
) -> ModelMetadata:
    """Convert the tokenizer of a GGUF file into `directory`. Raises `UnsupportedModel`.

    `template` is a chat template in place of the file's.
    """
    try:
        header = read_metadata(weights)
        tokenizer, token_form = gguf_tokenizer.convert(header)
    except GGUFError as error:
        raise UnsupportedModel(str(error)) from None
    control = gguf_tokenizer.control_tokens(header)
    vocab_size = len(header["tokenizer.ggml.tokens"])  # type: ignore[arg-type]
    spm = token_form == "byte_fallback"
    ids = {
        name: _token_id(header, f"tokenizer.ggml.{key}_token_id", vocab_size, default)
        for name, key, default in (
            ("bos", "bos", 1 if spm else None),
            ("eos", "eos", 2 if spm else None),
            ("pad", "padding", None),
            ("unk", "unknown", 0 if spm else None),
            ("eot", "eot", None),
            ("eom", "eom", None),
        )
    }
    architecture = str(header.get("general.architecture", ""))
    stated = header.get("tokenizer.chat_template") if template is None else template
    _write_json(directory / "tokenizer.json", tokenizer)
    return _finish(
        directory,
        architecture=architecture,
        context_length=_positive(header.get(f"{architecture}.context_length"), weights.name),
        vocab_size=vocab_size,
        token_form=token_form,
        strips_space=strips_space_of(tokenizer),
        chat_template=stated if isinstance(stated, str) else None,
        ids=ids,
        add_bos=gguf_tokenizer.adds_bos(header),
        end_ids=[ids["eos"], ids["eot"], ids["eom"]],
        control=control,
        weights_digest=weights_digest,
    )


def write_from_directory(
    source: Path, directory: Path, weights_digest: str, template: str | None = None
) -> ModelMetadata:
    """Take over the tokenizer of a safetensors directory. Raises `UnsupportedModel`.

    `template` is a chat template in place of the directory's.
    """
    try:
        return _take_over(source, directory, weights_digest, template)
    except (AttributeError, KeyError, IndexError, TypeError) as error:
        raise UnsupportedModel(
            f"config.json, tokenizer.json or tokenizer_config.json has another form ({error})"
        ) from None


def write_from_encoder(source: Path, directory: Path, weights_digest: str) -> ModelMetadata:
    """Take over the tokenizer of an encoder's directory, as it is. Raises `UnsupportedModel`."""
    config = _read_json(source / "config.json")
    _read_json(source / "tokenizer.json")
    _copy_tokenizer(source, directory)
    return ModelMetadata(
        architecture=str(config.get("model_type", "")),
        context_length=_positive(config.get("max_position_embeddings"), "config.json"),
        vocab_size=_positive(config.get("vocab_size"), "config.json"),
        token_form="one_way",
        strips_space=False,
        chat_template=None,
        bos_id=None,
        eos_id=None,
        pad_id=None,
        unk_id=None,
        add_bos=False,
        stop_token_ids=(),
        tokenizer_digest=digest((directory / "tokenizer.json").read_bytes()),
        template_digest=digest(b""),
        weights_digest=weights_digest,
    )


def _copy_tokenizer(source: Path, directory: Path) -> None:
    """Copy the tokenizer, unless it lies in the store itself, as of a model from a hub."""
    if source != directory:
        shutil.copyfile(source / "tokenizer.json", directory / "tokenizer.json")


def _take_over(
    source: Path, directory: Path, weights_digest: str, template: str | None
) -> ModelMetadata:
    config = _read_json(source / "config.json")
    settings = _read_json(source / "tokenizer_config.json")
    tokenizer = _read_tokenizer(source, settings)
    generation_file = source / "generation_config.json"
    generation = _read_json(generation_file) if generation_file.exists() else {}
    vocab = _vocab(tokenizer)
    named = {key: token_text(settings.get(f"{key}_token")) for key in ("bos", "eos", "pad", "unk")}
    ids = {key: vocab.get(text) if text else None for key, text in named.items()}
    stated = [each.get("eos_token_id") for each in (generation, config)]
    end_ids = [id_ for each in stated for id_ in (each if isinstance(each, list) else [each])]
    if (source / "tokenizer.json").exists():
        _copy_tokenizer(source, directory)
    else:
        _write_json(directory / "tokenizer.json", tokenizer)
    return _finish(
        directory,
        architecture=str(config.get("model_type", "")),
        context_length=_positive(config.get("max_position_embeddings"), "config.json"),
        vocab_size=_positive(config.get("vocab_size"), "config.json"),
        token_form=_token_form(tokenizer),
        strips_space=strips_space_of(tokenizer),
        chat_template=_chat_template(source, settings) if template is None else template,
        ids=ids,
        add_bos=bool(settings.get("add_bos_token", prepends(tokenizer, named["bos"]))),
        end_ids=[ids["eos"], *end_ids],
        control={
            token["content"]: token["id"]
            for token in tokenizer.get("added_tokens", [])
            if token.get("special")
        },
        weights_digest=weights_digest,
        writes_config=source != directory,  # of a hub's model it must stay as it came
    )


def _finish(
    directory: Path,
    *,
    architecture: str,
    context_length: int,
    vocab_size: int,
    token_form: TokenForm,
    strips_space: bool,
    chat_template: str | None,
    ids: dict[str, int | None],
    add_bos: bool,
    end_ids: Sequence[object],
    control: dict[str, int],
    weights_digest: str,
    writes_config: bool = True,
) -> ModelMetadata:
    """Write tokenizer_config.json, unless it lies there already; state all in one struct."""
    if chat_template is not None and len(chat_template) > MAX_TEMPLATE_LENGTH:
        raise UnsupportedModel(f"the chat template is longer than {MAX_TEMPLATE_LENGTH} characters")
    stops = {id_ for id_ in end_ids if isinstance(id_, int) and 0 <= id_ < vocab_size}
    stops.update(control[text] for text in gguf_tokenizer.stop_texts(control))
    texts = {id_: text for text, id_ in control.items()}
    settings: Json = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context_length,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": add_bos,
        "chat_template": chat_template,
    }
    for key in ("bos", "eos", "pad", "unk"):
        settings[f"{key}_token"] = texts.get(ids[key]) if ids[key] is not None else None  # type: ignore[arg-type]
    if writes_config:
        _write_json(directory / "tokenizer_config.json", settings)
    return ModelMetadata(
        architecture=architecture,
        context_length=context_length,
        vocab_size=vocab_size,
        token_form=token_form,
        strips_space=strips_space,
        chat_template=chat_template,
        bos_id=ids["bos"],
        eos_id=ids["eos"],
        pad_id=ids["pad"],
        unk_id=ids["unk"],
        add_bos=add_bos and ids["bos"] is not None,
        stop_token_ids=tuple(sorted(stops)),
        tokenizer_digest=digest((directory / "tokenizer.json").read_bytes()),
        template_digest=digest((chat_template or "").encode()),
        weights_digest=weights_digest,
    )


def _token_id(
    header: dict[str, Value], key: str, vocab_size: int, default: int | None
) -> int | None:
    id_ = header.get(key, default)
    return id_ if isinstance(id_, int) and 0 <= id_ < vocab_size else None


def _positive(value: object, where: str) -> int:
    if not isinstance(value, int) or value < 1:
        raise UnsupportedModel(f"{where}: the context length or vocabulary size is missing")
    return value


def _read_json(path: Path) -> Json:
    content = read_json(path)
    if content is None and not path.exists():
        raise UnsupportedModel(f"{path.name} is missing beside the weights")
    if not isinstance(content, dict):
        raise UnsupportedModel(f"{path.name} is not a JSON object")
    return content


def _write_json(path: Path, content: Json) -> None:
    path.write_bytes(orjson.dumps(content))


def _read_tokenizer(source: Path, settings: Json) -> Json:
    """Return tokenizer.json; without one what `tokenizer.model` and tokenizer_config.json say."""
    file = source / "tokenizer.model"
    if (source / "tokenizer.json").exists() or not file.exists():
        return _read_json(source / "tokenizer.json")
    if file.stat().st_size > sentencepiece_model.MAX_SIZE:
        raise UnsupportedModel(f"{file.name} is larger than {sentencepiece_model.MAX_SIZE} bytes")
    try:
        model = sentencepiece_model.parse(file.read_bytes(), file.name)
        return gguf_tokenizer.convert_sentencepiece(model, settings)
    except (sentencepiece_model.SentencePieceError, GGUFError) as error:
        raise UnsupportedModel(str(error)) from None


def _vocab(tokenizer: Json) -> dict[str, int]:
    vocab = tokenizer.get("model", {}).get("vocab")
    if isinstance(vocab, list):  # of a Unigram model: pieces with their scores
        vocab = {piece: id_ for id_, (piece, _) in enumerate(vocab)}
    if not isinstance(vocab, dict):
        raise UnsupportedModel("tokenizer.json holds no BPE vocabulary")
    return {**vocab, **{t["content"]: t["id"] for t in tokenizer.get("added_tokens", [])}}


def _token_form(tokenizer: Json) -> TokenForm:
    """Return it by the decoder, which is what turns tokens into text."""
    kinds = {step.get("type") for step in decoder_steps(tokenizer)}
    if "ByteLevel" in kinds:
        return "byte_level"
    if "ByteFallback" in kinds:
        return "byte_fallback"
    raise UnsupportedModel(f"tokenizer.json decodes by {sorted(map(str, kinds))}, not by bytes")


def _chat_template(source: Path, settings: Json) -> str | None:
    """Return `chat_template.jinja`, or tokenizer_config's: one template, or a list with a
    default."""
    file = source / "chat_template.jinja"
    if file.exists():
        with file.open(encoding="utf-8") as stream:
            return stream.read(MAX_TEMPLATE_LENGTH + 1)
    stated = settings.get("chat_template")
    if isinstance(stated, list):
        named = {each.get("name"): each.get("template") for each in stated}
        stated = named.get("default")
    return stated if isinstance(stated, str) else None
