"""Files of the home that configure an edge while it runs."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from tests.edge.gate.issuer import Provider, provider
from tests.edge.scripted_region import MODEL
from tests.edge.support import specs

from skerry.errors import SkerryError
from skerry_cli.composition.configured import configured, end_revoked
from skerry_cli.composition.listening import open_certificate
from skerry_cli.home.errors import CannotStart
from skerry_cli.home.state import Config, Home, write_config
from skerry_edge.gate.admission import Admission
from skerry_edge.gate.caller import Caller
from skerry_edge.gate.oidc.logins import Logins
from skerry_edge.gate.principal import Principal
from skerry_edge.gate.request_demand import RequestDemand
from skerry_edge.gate.tokens import TokenStore
from skerry_edge.limits import Limits
from skerry_edge.money.caps import Budget, Caps
from skerry_edge.money.sqlite_spending import SqliteSpending
from skerry_regions.models.catalog import Catalog, Price

ACCOUNT = "0123456789abcdef0123456789abcdef"
CATALOG = Catalog(specs())


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    home.create()
    return home


def demand(token: str, caps: Caps | None = None) -> RequestDemand:
    return RequestDemand(
        caller=Caller(
            request_id="r",
            tenant=ACCOUNT,
            token=token,
            budgets=() if caps is None else (Budget(token, caps),),
            started=0.0,
            deadline=1.0,
        ),
        model=MODEL,
        price=Price(prompt=1.0),
        prompt_tokens=1000,
    )


def test_limits_and_tokens_are_followed(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        tokens = TokenStore(home.tokens)
        _, record = tokens.create(account_id=ACCOUNT, now=0)
        home.limits.write_text("every_tenant: {concurrency: 7}")
        async with configured(home, CATALOG, tokens, Limits(), logins=Logins(ACCOUNT)) as admission:
            assert admission.quotas.every_tenant.concurrency == 7
            ended: list[SkerryError] = []
            place = await admission.enter(demand(record.id), on_end=ended.append)

            home.limits.write_text("every_tenant: {concurrency: many}")
            TokenStore(home.tokens).revoke(record.id)
            os.kill(os.getpid(), signal.SIGHUP)
            await until_told(ended)
            assert ended[0].number == 10000
            assert admission.quotas.every_tenant.concurrency == 7
            assert "limits.yaml:1: every_tenant.concurrency" in caplog.text
            place.leave()

            home.limits.unlink()
            os.kill(os.getpid(), signal.SIGHUP)
            await until_unlimited(admission)

    asyncio.run(run())


async def until_told(ended: list[SkerryError]) -> None:
    async with asyncio.timeout(30):
        while not ended:  # noqa: ASYNC110  (a signal's doing)
            await asyncio.sleep(0.01)


async def until_unlimited(admission: Admission) -> None:
    async with asyncio.timeout(30):
        while not admission.quotas.every_tenant.is_unlimited:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_what_was_used_is_settled_at_the_end(home: Home) -> None:
    async def run() -> None:
        async with configured(
            home, CATALOG, TokenStore(home.tokens), Limits(), logins=Logins(ACCOUNT)
        ) as admission:
            place = await admission.enter(demand("t", Caps(per_day=1.0)))
            place.leave(prompt_tokens=500)

    asyncio.run(run())
    spending = SqliteSpending(home.spending)
    assert asyncio.run(spending.spent("t"))[0] == pytest.approx(0.0005)
    asyncio.run(spending.close())


def test_an_edge_does_not_start_with_files_that_it_cannot_use(home: Home) -> None:
    async def run() -> None:
        async with configured(
            home, CATALOG, TokenStore(home.tokens), Limits(), logins=Logins(ACCOUNT)
        ):
            pass

    home.issuers.write_text("issuers: [{name: acme}]")
    with pytest.raises(CannotStart, match=r"issuers\.yaml:1: issuers\[0\]"):
        asyncio.run(run())
    home.issuers.unlink()
    home.limits.write_text("models: [{model: no-such-model}]")
    with pytest.raises(CannotStart, match=r"limits\.yaml:1: models\[0\]\.model: no model"):
        asyncio.run(run())
    with pytest.raises(CannotStart, match=r"limits\.yaml with"):
        open_certificate(home.limits, home.limits)


ISSUERS = """\
issuers:
  - name: acme
    issuer: URL
    audience: [skerry]
    grants: [{account: platform, scopes: [run]}]
"""


def test_requests_of_a_login_end_when_its_issuer_goes(home: Home) -> None:
    """Followed as the other files: from no issuer to one, and back."""

    async def run(known: Provider) -> None:
        write_config(home, Config(account_id=ACCOUNT, api_token="unused"))
        logins = Logins(ACCOUNT)
        tokens = TokenStore(home.tokens)
        async with configured(home, CATALOG, tokens, Limits(), logins=logins) as admission:
            assert await logins.authenticate(known.token()) is None
            home.issuers.write_text(ISSUERS.replace("URL", known.url))
            principal = await until_known(logins, known.token())
            assert (principal.login, principal.account_id) == ("acme:alice", ACCOUNT)
            ended: list[SkerryError] = []
            place = await admission.enter(demand(principal.login), on_end=ended.append)
            end_revoked(admission, tokens, logins)
            assert ended == []
            home.issuers.write_text("issuers: []")
            await until_told(ended)
            assert ended[0].number == 10000
            place.leave()

    with provider() as known:
        asyncio.run(run(known))


async def until_known(logins: Logins, token: str) -> Principal:
    async with asyncio.timeout(30):
        while True:
            principal = await logins.authenticate(token)
            if principal is not None:
                return principal
            await asyncio.sleep(0.01)
