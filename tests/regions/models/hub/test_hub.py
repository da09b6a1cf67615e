"""What a hub says of repositories, and what is made of it; `huggingface_hub` at the other end."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from tests.core.random_embedders import write_embedder
from tests.core.random_encoders import CONFIG, KERNELS
from tests.regions.models.hub.pulls import entry, ignore, known, pulled
from tests.regions.models.hub_server import LocalHub, Repo
from tests.regions.tiny_model import write_openable

from skerry.errors import ModelNotFound
from skerry_core.encoder.encoder import Encoder
from skerry_regions.models import pulling
from skerry_regions.models.catalog import SamplingDefaults
from skerry_regions.models.hub_catalog import HubCatalog
from skerry_regions.models.local_model import describe
from skerry_regions.models.problems import PullError, UnsupportedModel
from skerry_regions.models.pulling import wanted
from skerry_regions.models.sources import Hub
from skerry_regions.models.store import ModelStore


def test_the_server_is_one_that_huggingface_hub_understands(
    hub: LocalHub, gguf: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    import huggingface_hub
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    api = huggingface_hub.HfApi(endpoint=hub.endpoint, token=False)
    info = api.model_info("me/tiny-GGUF", files_metadata=True)
    assert info.sha == hub.repos["me/tiny-GGUF"].commit
    [q4] = [each for each in info.siblings or [] if each.rfilename == "tiny-Q4_K_M.gguf"]
    assert q4.lfs is not None
    assert (q4.size, q4.lfs.sha256) == (len(gguf), hashlib.sha256(gguf).hexdigest())
    path = api.hf_hub_download("me/tiny-GGUF", "tiny-Q4_K_M.gguf", cache_dir=tmp_path)
    assert Path(path).read_bytes() == gguf
    with pytest.raises(RepositoryNotFoundError):
        api.model_info("me/none")
    hub.repos["me/tiny-GGUF"].gated = True
    with pytest.raises(GatedRepoError):
        api.hf_hub_download("me/tiny-GGUF", "README.md", cache_dir=tmp_path / "other")


# --- from a name to a pinned entry


def test_a_repository_of_any_name_is_pinned(hub: LocalHub, gguf: bytes, tmp_path: Path) -> None:
    found, store = pulled(hub, tmp_path, wanted("hf:me/tiny-GGUF", known()))
    commit = hub.repos["me/tiny-GGUF"].commit
    assert found.spec.id == "@hf/me/tiny-GGUF"
    assert found.spec.source == f"hub:me/tiny-GGUF@{commit}"
    [file] = found.spec.files
    assert (file.name, file.sha256) == ("tiny-Q4_K_M.gguf", hashlib.sha256(gguf).hexdigest())
    assert found.license == "apache-2.0"
    before = len(hub.asked)
    assert store.pull(found.spec, ignore).weights.read_bytes() == gguf
    assert len(hub.asked) == before  # the blob was there


def test_a_known_model_has_the_facts_of_its_entry(hub: LocalHub, tmp_path: Path) -> None:
    sampling = SamplingDefaults(temperature=0.5)
    catalog = known(capabilities=("function_calling",), sampling=sampling, license="mit")
    found, _ = pulled(hub, tmp_path, wanted("@cf/me/tiny:q8_0", catalog))
    assert found.spec.files[0].name == "tiny-Q8_0.gguf"
    assert (found.spec.context_window, found.spec.capabilities) == (48, ("function_calling",))
    assert found.spec.sampling == sampling
    assert found.notes == ["license: apache-2.0, not mit as our catalog has it"]


def test_a_pinned_entry_installs_the_same_bytes_elsewhere(
    hub: LocalHub, gguf: bytes, tmp_path: Path
) -> None:
    found, _ = pulled(hub, tmp_path, wanted("hf:me/tiny-GGUF:tiny-Q4_K_M.gguf", known()))
    other = ModelStore(tmp_path / "other", hub=Hub(endpoints=(hub.endpoint,)))
    assert other.pull(found.spec, ignore).weights.read_bytes() == gguf


def test_a_name_in_capitals_and_a_quantisation_that_is_not_there(
    hub: LocalHub, tmp_path: Path
) -> None:
    with pytest.raises(PullError, match=r"no single q2_k.*tiny-Q4_K_M\.gguf, tiny-Q8_0\.gguf"):
        pulled(hub, tmp_path, wanted("@cf/me/tiny:Q2_K", known()))


@pytest.fixture
def tensors(hub: LocalHub) -> dict[str, bytes]:
    """A repository in safetensors, whose architecture is not supported."""
    files = {
        "config.json": json.dumps({"model_type": "mamba2", "max_position_embeddings": 32}).encode(),
        "tokenizer.json": b"{}",
        "tokenizer_config.json": b"{}",
        "model.safetensors": b"x" * 20_000,
    }
    hub.repos["me/tiny"] = Repo(files)
    return files


@pytest.mark.usefixtures("tensors")
def test_config_json_is_looked_at_before_the_first_byte_of_weights(
    hub: LocalHub, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel, match=r"me/tiny: config\.json: model_type 'mamba2'"):
        pulled(hub, tmp_path, wanted("@cf/me/tiny:safetensors", known()))
    assert hub.sent == 0


def test_the_header_of_a_gguf_is_looked_at_before_the_rest(hub: LocalHub, tmp_path: Path) -> None:
    other = write_openable(tmp_path / "other.gguf", "mamba2").read_bytes() + b"\0" * (4 << 20)
    hub.repos["me/gemma"] = Repo({"gemma-Q4_K_M.gguf": other})
    with pytest.raises(UnsupportedModel, match=r"general\.architecture 'mamba2' is not supported"):
        pulled(hub, tmp_path, wanted("hf:me/gemma", known()))
    assert hub.sent <= 2 << 20
    strange = write_openable(tmp_path / "q3.gguf", format_="Q3_K").read_bytes()
    hub.repos["me/q3"] = Repo({"q3.gguf": strange})
    with pytest.raises(UnsupportedModel, match="has format Q3_K, which is not supported"):
        pulled(hub, tmp_path / "again", wanted("hf:me/q3", known()))


def test_what_is_said_to_embed_must_be_an_encoder(hub: LocalHub, tmp_path: Path) -> None:
    hub.repos["me/tiny"] = Repo(
        {"config.json": json.dumps(CONFIG).encode(), "model.safetensors": b"x" * 20_000}
    )
    catalog = known(gguf=None, task="text-embeddings", model_type="roberta", context_window=999)
    with pytest.raises(UnsupportedModel, match=r"model\.safetensors"):  # they are no weights
        pulled(hub, tmp_path, wanted("@cf/me/tiny", catalog))
    hub.repos["me/tiny"].files["config.json"] = b'{"model_type": "gemma2"}'
    with pytest.raises(UnsupportedModel, match="Invalid enum value 'gemma2'"):
        pulled(hub, tmp_path / "again", wanted("@cf/me/tiny", catalog))


def test_an_embedder_comes_with_the_dense_layers_behind_it(hub: LocalHub, tmp_path: Path) -> None:
    write_embedder(tmp_path / "made", "EmbeddingGemma")
    names = [path for path in (tmp_path / "made").rglob("*") if path.is_file()]
    files = {str(path.relative_to(tmp_path / "made")): path.read_bytes() for path in names}
    hub.repos["me/tiny"] = Repo(files)
    catalog = known(gguf=None, task="text-embeddings", model_type="gemma3_text", context_window=100)
    found, store = pulled(hub, tmp_path, wanted("@cf/me/tiny", catalog))
    wanted_spec = describe(tmp_path / "made", "@cf/me/tiny")
    assert {(file.name, file.sha256) for file in found.spec.files} == {
        (file.name, file.sha256) for file in wanted_spec.files
    }
    assert (found.spec.embedding, found.spec.context_window) == (wanted_spec.embedding, 100)
    for home in (store, ModelStore(tmp_path / "other", hub=Hub(endpoints=(hub.endpoint,)))):
        encoder = Encoder.open(home.pull(found.spec, ignore).weights, threads=1, cache_dir=KERNELS)
        assert encoder.width == 64
        encoder.close()
    del files["3_Dense/model.safetensors"]
    with pytest.raises(UnsupportedModel, match=r"modules\.json wants 3_Dense/model"):
        pulled(hub, tmp_path / "again", wanted("@cf/me/tiny", catalog))


def test_in_what_an_entry_is_wrong() -> None:
    told = pulling._compare(entry(model_type="qwen2"), "llama", 32)
    assert told == [
        "model_type: llama, not qwen2 as our catalog has it",
        "context: 32 tokens, not 48 as our catalog has it",
    ]


# --- the packaged file


def test_the_packaged_models_are_known() -> None:
    catalog = HubCatalog.load()
    assert len(catalog) >= 40
    llama = catalog.resolve("@cf/meta/llama-3.2-1b-instruct")
    assert llama.repository(llama.usual) == "bartowski/Llama-3.2-1B-Instruct-GGUF"
    assert llama.repository("safetensors") == "meta-llama/Llama-3.2-1B-Instruct"
    with pytest.raises(ModelNotFound, match="the architecture falcon is not supported"):
        catalog.resolve("@cf/tiiuae/falcon-7b-instruct")
    with pytest.raises(ModelNotFound, match=r"Did you mean @cf/meta/llama-3\.2-1b-instruct"):
        catalog.resolve("@cf/meta/llama-3.2-1b-instruc")
    for refused in catalog.refused:
        if refused.instead is not None:
            assert catalog.resolve(refused.instead).id == refused.instead
