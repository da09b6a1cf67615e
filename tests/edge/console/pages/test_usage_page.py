"""The page of usage and caps in a browser: its figures are the journal's and those of the caps."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.edge.console.browsing import BROWSER, NARROW, WIDE, Pages, close, shot
from tests.edge.scripted_region import MODEL
from tests.edge.support import ACCOUNT, Deployment, deployed, eventually, spent

from skerry_edge.gate.admission import Admission
from skerry_edge.ledger.stores import Stores
from skerry_edge.ledger.usage_journal import UsageJournal
from skerry_edge.limits import Limits
from skerry_edge.money.caps import Caps
from skerry_edge.money.sqlite_spending import SqliteSpending

pytestmark = BROWSER

OTHER = "f" * 32  # an account
HOSTILE = "=1+1<img src=x onerror=alert(1)>\u202e"


@pytest.fixture(scope="module")
def browsed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("usage")
    spending = SqliteSpending(folder / "spending.db")
    stores = Stores(journal=UsageJournal(folder / "usage.db", edge="e"))
    with deployed(
        folder, Limits(), console="loopback", stores=stores, platform=ACCOUNT,
        admission=Admission(spending=spending),
    ) as edge:  # fmt: skip
        yield edge
    close(spending)


def told_by_the_api(edge: Deployment, query: str = "") -> list[dict[str, Any]]:
    path = f"/client/v4/accounts/{ACCOUNT}/ai/usage?since=30d{query}"
    found: list[dict[str, Any]] = edge.client.get(path).json()["result"]
    return found


def cells(page: Any, name: str) -> list[str]:
    found: list[str] = page.locator(f".sums tr[data-name='{name}'] td").all_inner_texts()
    return found


def test_sums_are_the_journals(at: Deployment, pages: Pages) -> None:
    for _ in range(3):
        at.run(prompt="hi")
    page = pages.open(pages.link(path="/console/usage"))
    page.wait_for_selector(f".sums tr[data-name='{MODEL}']")
    [row] = told_by_the_api(at, "&by=model")
    requests, failed, prompt, cached, answers, *_ = cells(page, MODEL)
    assert [int(each.replace(",", "")) for each in (requests, failed, prompt, answers)] == [
        row["requests"], row["failed"], row["prompt_tokens"], row["output_tokens"],
    ]  # fmt: skip
    assert cached == f"{round(100 * row['cached_tokens'] / row['prompt_tokens'])} %"
    cost = page.inner_text("#cost").split()[0].lstrip("$")
    assert float(cost) == pytest.approx(row["cost"], rel=0.06)  # two digits
    bars = (
        page.locator(".col")
        .nth(30)
        .locator("i")
        .evaluate_all(
            "all => all.map(each => [each.dataset.phase, each.getBoundingClientRect().height])"
        )
    )
    heights = {phase: height for phase, height in bars if height}
    assert heights["decode"] / heights["prefill"] == pytest.approx(
        row["output_cost"] / row["prompt_cost"], rel=0.05
    )
    shot(page, "usage-dark")


def test_tokens_and_days_have_sums_of_their_own(at: Deployment, pages: Pages) -> None:
    at.run(prompt="hi")
    page = pages.open(pages.link(path="/console/usage?by=token"))
    for by in ("token", "day"):
        page.click(f"[data-by='{by}']")
        page.wait_for_selector(f"[data-by='{by}'][aria-pressed='true']")
        for row in told_by_the_api(at, f"&by={by}"):
            page.wait_for_selector(f".sums tr[data-name='{row[by]}']")
            assert cells(page, row[by])[0] == str(row["requests"])
    assert page.evaluate("new URLSearchParams(location.search).get('by')") == "day"


def test_all_accounts_are_for_operators(at: Deployment, pages: Pages) -> None:
    theirs, _ = at.edge.tokens.create(account_id=OTHER, now=0)
    at.client.post(
        f"/client/v4/accounts/{OTHER}/ai/run/{MODEL}", json={"prompt": "hi"},
        headers={"authorization": f"Bearer {theirs}"},
    )  # fmt: skip
    page = pages.open(pages.link(path="/console/usage"))
    page.wait_for_selector(".sums")
    assert page.locator("#accounts").count() == 0
    _, operator = at.edge.tokens.create(account_id=ACCOUNT, role="operator", now=0)
    page = pages.open(pages.link(operator.id, path="/console/usage"))
    page.wait_for_selector(".sums")
    assert page.locator("[data-by='tenant']").is_hidden()
    page.select_option("#accounts", "all")
    page.click("[data-by='tenant']")
    page.wait_for_selector(f".sums tr[data-name='{OTHER}']")
    assert cells(page, ACCOUNT)


def test_a_cap_shows_what_is_spent_of_it(at: Deployment, pages: Pages) -> None:
    token, record = at.edge.tokens.create(
        account_id=ACCOUNT, name=HOSTILE, caps=Caps(per_day=0.001), now=0
    )
    at.client.post(
        at.run_path, json={"prompt": "x", "max_tokens": 100},
        headers={"authorization": f"Bearer {token}"},
    )  # fmt: skip
    spending = at.edge.admission.spending
    assert spending is not None
    eventually(lambda: 0 < spent(spending, record.id)[0] < 0.0001)  # it is settled
    page = pages.open(pages.link(path="/console/usage"), theme="light")
    page.wait_for_selector(".cap")
    assert page.inner_text(".cap b") == HOSTILE.replace("\u202e", "⟨U+202E⟩")
    assert page.locator("main img").count() == 0
    value = page.locator(".cap progress").evaluate("each => each.value / each.max")
    assert value == pytest.approx(spent(spending, record.id)[0] / 0.001, rel=1e-6)
    at.edge.tokens.set_caps(record.id, Caps(per_day=spent(spending, record.id)[0]))
    page.click("#reload")
    page.wait_for_selector(".cap[data-full='true'] >> text=reached; lifts in")
    shot(page, "usage-light")
    at.edge.tokens.revoke(record.id)


def test_the_csv_has_the_tables_rows(at: Deployment, pages: Pages, tmp_path: Path) -> None:
    at.run(prompt="hi")
    page = pages.open(pages.link(path="/console/usage"))
    page.wait_for_selector(".sums")
    with page.expect_download() as download:
        page.click("text=CSV")
    download.value.save_as(tmp_path / "usage.csv")
    text = (tmp_path / "usage.csv").read_text()
    [row] = csv.DictReader(io.StringIO(text))
    [told] = told_by_the_api(at, "&by=model")
    assert row["model"] == f"'{MODEL}"  # it begins as a formula would
    assert int(row["prompt_tokens"]) == told["prompt_tokens"]
    assert float(row["cost"]) == pytest.approx(told["cost"])


def test_without_a_row_the_page_says_what_to_do(at: Deployment, pages: Pages) -> None:
    _, record = at.edge.tokens.create(account_id="e" * 32, role="viewer", now=0)
    page = pages.open(pages.link(record.id, path="/console/usage"))
    page.wait_for_selector("text=Nothing was used in this time")
    _, record = at.edge.tokens.create(account_id=ACCOUNT, scopes=("run",), now=0)
    page = pages.open(pages.link(record.id, path="/console/usage"))
    page.wait_for_selector("text=This login reads nothing")


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("size", [WIDE, (820, 1180), NARROW])
def test_it_fits_into_the_window(
    at: Deployment, pages: Pages, size: tuple[int, int], theme: str
) -> None:
    at.run(prompt="hi")
    page = pages.open(pages.link(path="/console/usage"), size=size, theme=theme)
    page.wait_for_selector(".sums")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    shot(page, f"usage-{size[0]}-{theme}")
