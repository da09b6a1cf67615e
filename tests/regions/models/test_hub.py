"""What a hub says of repositories, and what is made of it; `huggingface_hub` at the other end."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.core.random_embedders import write_embedder
from tests.core.random_encoders import CONFIG, KERNELS
from tests.regions.models.hub_server import GRANTED, NOT_GRANTED, LocalHub, Repo, serving
from tests.regions.tiny_model import write_openable

from skerry.errors import ModelNotFound
from skerry_cli.composition.opening import CHECKS
from skerry_core.encoder.encoder import Encoder
from skerry_regions.models import pulling
from skerry_regions.models.blobs import Blobs
from skerry_regions.models.catalog import SamplingDefaults
from skerry_regions.models.hub import HubClient
from skerry_regions.models.hub_catalog import HubCatalog, HubDocument, HubModel
from skerry_regions.models.local_model import describe
from skerry_regions.models.problems import PullError, UnsupportedModel
from skerry_regions.models.pulling import PullRequest, Resolved, resolve, wanted
from skerry_regions.models.sources import Hub
from skerry_regions.models.store import ModelStore


def ignore(_what: str, _share: float) -> None:
    """Progress nobody looks at."""


@pytest.fixture
def gguf(tmp_path: Path) -> bytes:
    return write_openable(tmp_path / "made.gguf").read_bytes()


@pytest.fixture
def hub(gguf: bytes) -> Iterator[LocalHub]:
    files = {"README.md": b"# Hello", "tiny-Q4_K_M.gguf": gguf, "tiny-Q8_0.gguf": gguf + b"\0"}
    with serving(LocalHub({"me/tiny-GGUF": Repo(files)})) as hub:
        yield hub


def pulled(
    hub: LocalHub, tmp_path: Path, asked: PullRequest, *, token: str | None = None
) -> tuple[Resolved, ModelStore]:
    source = Hub(endpoints=(hub.endpoint,), token=token)
    store = ModelStore(tmp_path / "home", hub=source)
    folder = tmp_path / "home" / "models" / "scratch"
    folder.mkdir(parents=True)
    with HubClient(source, sleep=lambda seconds: None) as client:
        found = resolve(asked, client, CHECKS, store.blobs, folder, ignore)
    return found, store


def entry(**facts: Any) -> HubModel:
    usual: dict[str, Any] = {
        "id": "@cf/me/tiny", "weights": "me/tiny", "gguf": "me/tiny-GGUF", "model_type": "llama",
        "context_window": 48, "license": "apache-2.0",
    }  # fmt: skip
    return HubModel(**(usual | facts))


def known(**facts: Any) -> HubCatalog:
    return HubCatalog(HubDocument(models=[entry(**facts)], refused=[]))


# --- the other end


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


def test_a_gated_model_says_what_to_do(hub: LocalHub, tmp_path: Path) -> None:
    hub.repos["me/tiny-GGUF"].gated = True
    asked = wanted("hf:me/tiny-GGUF", known())
    with pytest.raises(PullError, match=r"is gated: accept its licence at .*HF_TOKEN"):
        pulled(hub, tmp_path / "a", asked)
    with pytest.raises(PullError, match="your token's account has no access") as caught:
        pulled(hub, tmp_path / "b", asked, token=NOT_GRANTED)
    assert NOT_GRANTED not in str(caught.value)
    found, _ = pulled(hub, tmp_path / "c", asked, token=GRANTED)
    assert found.spec.files[0].name == "tiny-Q4_K_M.gguf"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf:me/none", "has no repository me/none"),
        ("hf:me/tiny-GGUF@v9", "no such revision"),
        ("hf:me/tiny-GGUF:README.md", "neither a GGUF file nor safetensors"),
        ("hf:tiny", "must look like hf:owner/repository"),
        ("hf:../../etc", "must look like|no repository"),
    ],
)
def test_what_is_not_there_is_named(hub: LocalHub, tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(PullError, match=message):
        pulled(hub, tmp_path, wanted(name, known()))


def test_a_repository_whose_files_leave_their_folder_is_refused(
    hub: LocalHub, tmp_path: Path
) -> None:
    hub.repos["me/tiny-GGUF"].files["../../evil.gguf"] = b"x"
    with pytest.raises(PullError, match=r"a file of the name '\.\./\.\./evil\.gguf'"):
        pulled(hub, tmp_path, wanted("hf:me/tiny-GGUF", known()))


def test_files_in_parts_are_refused_by_name(hub: LocalHub, tmp_path: Path) -> None:
    hub.repos["me/big"] = Repo(
        {f"big-Q4_K_M-0000{part}-of-00002.gguf": b"x" * 20_000 for part in (1, 2)}
    )
    with pytest.raises(PullError, match="files in parts are not supported"):
        pulled(hub, tmp_path, wanted("hf:me/big", known()))


def test_a_hub_that_is_busy_is_asked_again(hub: LocalHub, tmp_path: Path) -> None:
    hub.hub_statuses = [429, 429]
    pulled(hub, tmp_path, wanted("hf:me/tiny-GGUF", known()))


def test_offline_asks_nothing(hub: LocalHub, tmp_path: Path) -> None:
    source = Hub(endpoints=(hub.endpoint,), offline=True)
    with HubClient(source) as client, pytest.raises(PullError, match="HF_HUB_OFFLINE is set"):
        client.repository("me/tiny-GGUF", "main")
    assert hub.asked == []


def test_where_the_hub_is_and_who_asks(tmp_path: Path) -> None:
    assert Hub.from_environ({}).endpoints == ("https://huggingface.co",)
    told = {"HF_ENDPOINT": "https://a, https://b", "HF_TOKEN": "hf_1", "HF_HUB_OFFLINE": "1"}
    found = Hub.from_environ(told)
    assert (found.endpoints, found.token) == (("https://a", "https://b"), "hf_1")
    assert found.offline
    assert "hf_1" not in repr(found)
    (tmp_path / "token").write_text("hf_2\n")
    assert Hub.from_environ({"HF_HOME": str(tmp_path)}).token == "hf_2"


# --- blobs


def test_no_room_on_the_disk_is_told_before_the_first_byte(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path, free_bytes=lambda path: 300 << 20)
    with pytest.raises(PullError, match=r"5\.0 GB are to be downloaded.*0\.3 GB free"):
        blobs.obtain("0" * 64, 5 * 10**9, "m.gguf", lambda path: pytest.fail("it began"), ignore)


def test_two_that_want_the_same_blob_fetch_it_once(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()
    fetched: list[str] = []
    said: list[str] = []

    def fetch(path: Path) -> None:
        fetched.append(path.name)
        begun.set()
        assert go_on.wait(60)
        path.write_bytes(b"blob")

    def tell(what: str, share: float) -> None:
        said.append(what)
        go_on.set()

    first = threading.Thread(target=lambda: Blobs(tmp_path).obtain("a" * 64, 4, "m", fetch, ignore))
    first.start()
    assert begun.wait(60)
    Blobs(tmp_path).obtain("a" * 64, 4, "m", fetch, tell)
    first.join()
    assert (fetched, said) == (["a" * 64], ["waiting for another download of m"])


def test_a_blob_that_no_model_links_to_is_swept(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    kept, loose = blobs.put(b"kept"), blobs.put(b"loose")
    assert blobs.link(kept, tmp_path / "linked")
    blobs.sweep(now=0.0)
    assert [path.name for path in (tmp_path / ".blobs").iterdir()] == [kept]
    assert not blobs.link(loose, tmp_path / "other")


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
