"""The page of batches in a browser: what it shows and does is what OpenAI's client sees."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.edge.api.batch.test_openai_batches import chat, create, ended, lines
from tests.edge.console.browsing import BROWSER, NARROW, WIDE, Pages, shot
from tests.edge.scripted_region import MODEL, Hold
from tests.edge.support import ACCOUNT, CHAT, PATIENCE, Deployment, deployed, eventually

from skerry_edge.ledger.stores import Stores
from skerry_edge.limits import Limits

pytestmark = BROWSER


@pytest.fixture(scope="module")
def browsed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("batches")
    with deployed(
        folder, Limits(drain_seconds=1), console="loopback", keeps_batches=True,
        stores=Stores.in_folder(folder / "stores", edge="edge-1"),
    ) as edge:  # fmt: skip
        edge.region.served = frozenset({MODEL, CHAT})
        yield edge


@pytest.fixture
def client(at: Deployment) -> Iterator[openai.OpenAI]:
    base_url = f"http://127.0.0.1:{at.port}/client/v4/accounts/{ACCOUNT}/ai/v1"
    with openai.OpenAI(api_key=at.token, base_url=base_url, max_retries=0) as client:
        yield client
    at.settle()


def cells(page: Any, name: str) -> list[str]:
    found: list[str] = page.locator(f".batches tr[data-name='{name}'] td").all_inner_texts()
    return found


def test_it_begins_with_what_to_do(pages: Pages) -> None:
    page = pages.open(pages.link(path="/console/batches"))
    page.wait_for_selector("text=No batch was ever sent")


def test_a_batch_goes_on_while_it_is_looked_at(
    at: Deployment, client: openai.OpenAI, pages: Pages
) -> None:
    at.region.script = lambda submit: [Hold()]
    batch = create(client, lines(chat("a"), chat("b")))
    eventually(lambda: at.region.streams)  # it has begun
    page = pages.open(pages.link(path="/console/batches"))
    page.wait_for_selector(f"tr[data-name='{batch.id}'] >> text=in progress")
    assert "0 of 2" in cells(page, batch.id)[1]
    page.click(f"tr[data-name='{batch.id}'] [data-act='cancel']")
    page.keyboard.press("Escape")  # it was not meant
    assert client.batches.retrieve(batch.id).status == "in_progress"
    page.click(f"tr[data-name='{batch.id}'] [data-act='cancel']")
    page.wait_for_selector("dialog >> text=2 of its requests are not done")
    page.click("dialog .danger")
    page.wait_for_selector(f"tr[data-name='{batch.id}'] >> text=cancelled")
    assert ended(client, batch.id).status == "cancelled"
    assert at.region.streams[-1].aborted.wait(PATIENCE)


def test_results_and_errors_are_the_files(
    client: openai.OpenAI, pages: Pages, tmp_path: Path
) -> None:
    batch = ended(client, create(client, lines(chat("a"), chat("b", temperature=99))).id)
    page = pages.open(pages.link(path="/console/batches"))
    page.wait_for_selector(f"tr[data-name='{batch.id}']")
    assert "2 of 2, 1 failed" in cells(page, batch.id)[1]
    for act, file in (("output", batch.output_file_id), ("errors", batch.error_file_id)):
        assert file is not None
        with page.expect_download() as download:
            page.click(f"tr[data-name='{batch.id}'] [data-act='{act}']")
        download.value.save_as(tmp_path / act)
        assert (tmp_path / act).read_text() == client.files.content(file).text
        assert download.value.suggested_filename == f"{file}.jsonl"


def test_mistakes_are_named_with_their_line(client: openai.OpenAI, pages: Pages) -> None:
    batch = create(client, lines(chat("a")) + json.dumps({"custom_id": "<b>"}).encode() + b"\n")
    assert batch.errors is not None
    [error] = batch.errors.data or []
    page = pages.open(pages.link(path="/console/batches"), theme="light")
    page.wait_for_selector(f"tr[data-name='{batch.id}'] >> text=failed")
    assert cells(page, batch.id)[0].endswith(f"line {error.line}: {error.message}")


def test_a_login_that_runs_nothing_is_told(at: Deployment, pages: Pages) -> None:
    _, record = at.edge.tokens.create(account_id=ACCOUNT, role="viewer", now=0)
    page = pages.open(pages.link(record.id, path="/console/batches"))
    page.wait_for_selector("text=This login may not run models")


@pytest.mark.parametrize("size", [WIDE, (820, 1180), NARROW])
def test_it_fits_into_the_window(
    client: openai.OpenAI, pages: Pages, size: tuple[int, int]
) -> None:
    create(client, lines(chat("a")))
    page = pages.open(pages.link(path="/console/batches"), size=size)
    page.wait_for_selector(".batches tbody tr")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    shot(page, f"batches-{size[0]}-dark")
