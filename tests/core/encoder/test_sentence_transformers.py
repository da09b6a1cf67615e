"""Models that embed and rank, from words to numbers, against sentence-transformers itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.core.encoder.test_classifier import write_transformers
from tests.core.random_embedders import EMBEDDERS, write_embedder
from tests.core.random_encoders import KERNELS
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from skerry_core.encoder.encoder import Encoder
from skerry_edge.text.encoder import EncoderText
from skerry_regions.models.catalog import ModelSpec
from skerry_regions.models.local_model import describe
from skerry_regions.models.store import ModelStore

pytestmark = pytest.mark.slow
library: Any = pytest.importorskip("sentence_transformers")

RNG = np.random.default_rng(3)
TEXTS = [
    " ".join(f"w{n}" for n in RNG.integers(0, 56, size)) for size in (1, 2, 9, 33, 90, 180, 300)
]
OWN_TOKENIZERS = ("Qwen2, windows",)  # transformers makes another of what lies beside them
FAMILIES = ("bert", "roberta", "xlm-roberta", "distilbert")


class Served:
    """A model as Skerry installs and computes it."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.spec: ModelSpec = describe(folder, "@cf/me/model")
        files = ModelStore(home).pull(self.spec, lambda _what, _share: None)
        self.text = EncoderText(files, max_tokens=self.spec.context_window)
        self.encoder = Encoder.open(files.weights, threads=1, cache_dir=KERNELS)

    def vectors(self, prompt: str) -> np.ndarray[Any, Any]:
        assert self.spec.embedding is not None
        ids = list(self.text.encode([prompt + text for text in TEXTS], truncate=True))
        how = self.spec.embedding
        return self.encoder.encode(ids, pooling=how.pooling, normalize=how.normalize)


@pytest.mark.parametrize("name", [each for each in EMBEDDERS if each not in OWN_TOKENIZERS])
def test_decoders_embed_as_sentence_transformers_does(tmp_path: Path, name: str) -> None:
    write_embedder(tmp_path / "model", name)
    model = library.SentenceTransformer(str(tmp_path / "model"), device="cpu")
    served = Served(tmp_path / "model", tmp_path / "home")
    prompts = served.spec.embedding
    assert prompts is not None
    for prompt, encode in (
        (prompts.text_prompt, model.encode),
        (prompts.query_prefix(None), model.encode_query),
        (prompts.document_prompt, model.encode_document),
    ):
        np.testing.assert_allclose(served.vectors(prompt), encode(TEXTS), atol=1e-5)
    served.encoder.close()


def write_tokenizer(folder: Path) -> None:
    """Words to tokens, with a mark before, between and behind."""
    has_types, counts_padding = folder.name == "bert", "roberta" in folder.name
    marks = ["<unk>", "<pad>"] if counts_padding else ["<pad>", "<unk>"]  # by config.json
    words = [*marks, "<s>", "</s>", *(f"w{n}" for n in range(56))]
    tokenizer = Tokenizer(
        models.WordLevel({word: id_ for id_, word in enumerate(words)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(words[:4])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1",
        special_tokens=[("<s>", 2), ("</s>", 3)],
    )  # fmt: skip
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "model_max_length": 38 if counts_padding else 40,
        "model_input_names": ["input_ids", "attention_mask"] + ["token_type_ids"] * has_types,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("family", FAMILIES)
def test_encoders_embed_as_sentence_transformers_does(
    tmp_path: Path, family: str, pooling: str
) -> None:
    folder = tmp_path / family
    write_transformers(folder, family, 2).base_model.save_pretrained(folder)
    write_tokenizer(folder)
    modules = library.sentence_transformer.modules
    transformer = modules.Transformer(str(folder), max_seq_length=37)
    parts = [transformer, modules.Pooling(64, pooling), modules.Normalize()]
    model = library.SentenceTransformer(modules=parts, device="cpu")
    model.save(str(tmp_path / "saved"))
    served = Served(tmp_path / "saved", tmp_path / "home")
    np.testing.assert_allclose(served.vectors(""), model.encode(TEXTS), atol=1e-5)
    served.encoder.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_cross_encoders_rank_as_sentence_transformers_does(tmp_path: Path, family: str) -> None:
    folder = tmp_path / family
    write_transformers(folder, family, 1)
    write_tokenizer(folder)
    model = library.CrossEncoder(str(folder), device="cpu")
    served = Served(folder, tmp_path / "home")
    assert served.spec.classification is not None
    assert served.spec.classification.ranks
    query, contexts = "w1 w2 w3", TEXTS[:4]
    pairs = list(served.text.encode_pairs(query, contexts, truncate=True))
    ids, seconds = [each for each, _ in pairs], [second for _, second in pairs]
    scores = 1 / (1 + np.exp(-served.encoder.classify(ids, second_starts=seconds)[:, 0]))
    theirs = model.predict([(query, each) for each in contexts])
    np.testing.assert_allclose(scores, theirs, atol=1e-5)
    served.encoder.close()
