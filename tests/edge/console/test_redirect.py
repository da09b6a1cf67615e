"""Logging in at an OpenID provider by going there: the provider is real, the browser a client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from tests.edge.console.browsing import Pages
from tests.edge.gate.issuer import AUDIENCE, Provider, provider
from tests.edge.support import ACCOUNT, Deployment, deployed

from skerry_edge.console.redirect import PENDING_SECONDS
from skerry_edge.gate.oidc import issuer_keys
from skerry_edge.gate.oidc.issuers import Issuer, LoginGrant
from skerry_edge.gate.oidc.logins import Logins
from skerry_edge.limits import Limits

OWN = {"x-skerry-console": "1"}
OF_THE_DRIVER = pytest.mark.filterwarnings("ignore::ResourceWarning")  # its pipes


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Deployment, Provider]]:
    folder: Path = tmp_path_factory.mktemp("redirect")
    logins = Logins("e" * 32)
    with (
        pytest.MonkeyPatch.context() as patch,
        provider() as known,
        deployed(folder, Limits(), console="loopback", logins=logins) as edge,
    ):
        patch.setattr(issuer_keys, "FETCH_SECONDS", 60.0)  # of a busy machine
        grant = LoginGrant(when={"sub": "alice"}, account=ACCOUNT, role="viewer")
        acme = Issuer(
            name="acme", issuer=known.url, audience=(AUDIENCE,), client_id=AUDIENCE, grants=(grant,)
        )
        quiet = Issuer(name="other", issuer="https://b.test", audience=("a",), grants=(grant,))
        logins.follow([acme, quiet])
        yield edge, known


@pytest.fixture
def known(shown: tuple[Deployment, Provider]) -> Provider:
    shown[1].spoil = {}
    return shown[1]


@pytest.fixture
def browser(shown: tuple[Deployment, Provider]) -> Iterator[httpx.Client]:
    """As a browser goes from page to page: it keeps cookies and follows no redirect by itself."""
    base = f"http://127.0.0.1:{shown[0].port}"
    with httpx.Client(base_url=base, trust_env=False, timeout=60.0) as client:
        yield client


def gone_to_the_issuer(browser: httpx.Client) -> str:
    """Where the issuer sends the browser back to."""
    away = browser.get("/console/oidc/acme")
    assert away.status_code == 303, away.text
    back = httpx.get(away.headers["location"], trust_env=False)
    assert back.status_code == 302
    return str(back.headers["location"])


def reason(reply: httpx.Response) -> str:
    """Why nobody was logged in."""
    assert reply.status_code == 303, reply.text
    assert not [each for each in reply.headers.get_list("set-cookie") if "28800" in each]
    home, _, told = reply.headers["location"].partition("#refused=")
    assert home == "/console/"
    return str(told)


def test_who_logs_in_there_is_logged_in_here(browser: httpx.Client, known: Provider) -> None:
    assert browser.get("/console/issuers", headers=OWN).json() == {"issuers": ["acme"]}
    home = browser.get(gone_to_the_issuer(browser))
    assert (home.status_code, home.headers["location"]) == (303, "/console/")
    session = browser.get("/console/session", headers=OWN).json()
    assert (session["holder"], session["role"], session["account"]) == (
        "acme:alice", "viewer", ACCOUNT,
    )  # fmt: skip
    cookies = [each.lower() for each in home.headers.get_list("set-cookie")]
    [kept] = [each for each in cookies if "max-age=28800" in each]
    assert "httponly" in kept
    assert "samesite=strict" in kept


def test_what_the_issuer_is_asked(browser: httpx.Client, known: Provider) -> None:
    away = urlsplit(browser.get("/console/oidc/acme").headers["location"])
    asked = {name: values[0] for name, values in parse_qs(away.query).items()}
    assert f"{away.scheme}://{away.netloc}{away.path}" == f"{known.url}/auth"
    assert asked["response_type"] == "code"
    assert asked["client_id"] == AUDIENCE
    assert asked["code_challenge_method"] == "S256"
    assert asked["redirect_uri"] == f"{str(browser.base_url).rstrip('/')}/console/oidc"
    assert "openid" in asked["scope"].split()
    again = urlsplit(browser.get("/console/oidc/acme").headers["location"])
    other = {name: values[0] for name, values in parse_qs(again.query).items()}
    for name in ("state", "nonce", "code_challenge"):
        assert len(asked[name]) >= 32
        assert asked[name] != other[name]


def test_another_browser_cannot_finish_it(browser: httpx.Client, known: Provider) -> None:
    back = gone_to_the_issuer(browser)
    with httpx.Client(trust_env=False) as other:
        assert reason(other.get(back)) == "over"
        other.get(browser.base_url.join("/console/oidc/acme"))  # has a login of its own on its way
        assert reason(other.get(back)) == "over"
    assert browser.get("/console/session", headers=OWN).status_code == 401


def test_a_code_is_for_once_and_for_ten_minutes(
    browser: httpx.Client, known: Provider, shown: tuple[Deployment, Provider],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    back = gone_to_the_issuer(browser)
    assert browser.get(back).headers["location"] == "/console/"
    assert reason(browser.get(back)) == "over"
    monkeypatch.setattr("skerry_edge.console.redirect.PENDING_SECONDS", -PENDING_SECONDS)
    assert reason(browser.get(gone_to_the_issuer(browser))) == "over"


@pytest.mark.parametrize(
    "spoil",
    [{"nonce": "another"}, {"nonce": None}, {"aud": "another"}, {"sub": "mallory"}, {"exp": 1}],
)
def test_a_token_that_is_not_ours_logs_nobody_in(
    browser: httpx.Client, known: Provider, spoil: dict[str, str | int | None]
) -> None:
    known.spoil = spoil
    assert reason(browser.get(gone_to_the_issuer(browser))) == "denied"
    assert browser.get("/console/session", headers=OWN).status_code == 401


def test_what_the_issuer_refuses_is_told(browser: httpx.Client, known: Provider) -> None:
    away = browser.get("/console/oidc/acme").headers["location"]
    state = parse_qs(urlsplit(away).query)["state"][0]
    assert reason(browser.get(f"/console/oidc?error=access_denied&state={state}")) == "denied"
    assert reason(browser.get("/console/oidc/other")) == "denied"  # it has no `client_id`
    known.is_down = True
    try:
        assert reason(browser.get("/console/oidc/acme")) == "away"
    finally:
        known.is_down = False


# --- in a browser --------------------------------------------------------------------------------


@pytest.fixture
def browsed(shown: tuple[Deployment, Provider]) -> Deployment:
    return shown[0]


@pytest.mark.slow
@OF_THE_DRIVER
def test_the_form_leads_there_and_back(known: Provider, pages: Pages) -> None:
    page = pages.open(f"{pages.base}/console/")
    page.click("text=Log in at acme")
    page.wait_for_selector(".who:has-text('viewer')")
    assert page.evaluate("location.href") == f"{pages.base}/console/"
    page.click("#logout")
    known.spoil = {"sub": "mallory"}
    page.click("text=Log in at acme")
    page.wait_for_selector("text=grants nothing here")
    assert page.evaluate("location.hash") == ""
    pages.faults = [each for each in pages.faults if known.url not in each]  # which it went to
