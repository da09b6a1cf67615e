"""An edge names another one that is nearer: the call goes there, once, with its token."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

import skerry
from skerry import AI

THERE = "https://iad.example.test/run?skerry-hops=1"
GOOD = httpx.Response(200, json={"result": {"response": "the sea"}, "success": True})


def moved(location: str = THERE, **headers: str) -> httpx.Response:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(307, headers={"location": location} | given)


def run(
    *answers: httpx.Response, base_url: str = "https://fra.example.test"
) -> tuple[str, list[httpx.Request]]:
    """What came of a call whose requests get these answers, and the requests."""
    asked: list[httpx.Request] = []
    left = iter(answers)

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return next(left)

    handler: Callable[[httpx.Request], httpx.Response] = answer
    with httpx.Client(transport=httpx.MockTransport(handler)) as http:
        ai = AI(base_url=base_url, account_id="a" * 32, api_token="token", http_client=http)
        try:
            return str(ai.run("@cf/x", {"prompt": "The"})["response"]), asked
        except skerry.SkerryError as error:
            return type(error).__name__, asked


def test_the_call_goes_there_with_its_token() -> None:
    told, asked = run(moved(x_skerry_hops="1"), GOOD)
    assert (told, [str(each.url.host) for each in asked]) == (
        "the sea", ["fra.example.test", "iad.example.test"],
    )  # fmt: skip
    assert str(asked[1].url) == THERE
    assert asked[1].headers["authorization"] == asked[0].headers["authorization"]
    assert asked[1].content == asked[0].content


@pytest.mark.parametrize(
    "answer",
    [
        moved(),  # not an edge of ours
        moved("http://iad.example.test/run", x_skerry_hops="1"),  # out of TLS
        moved("/run", x_skerry_hops="1"),
        moved("ftp://iad.example.test/", x_skerry_hops="1"),
    ],
)
def test_other_redirects_are_not_followed(answer: httpx.Response) -> None:
    told, asked = run(answer)
    assert (told, len(asked)) == ("RequestError", 1)


def test_once_only() -> None:
    told, asked = run(moved(x_skerry_hops="1"), moved(x_skerry_hops="1"))
    assert (told, len(asked)) == ("RequestError", 2)


def test_another_attempt_begins_where_the_first_did() -> None:
    busy = httpx.Response(503, headers={"retry-after": "0"})
    told, asked = run(moved(x_skerry_hops="1"), busy, GOOD)
    assert told == "the sea"
    assert [each.url.host for each in asked] == [
        "fra.example.test", "iad.example.test", "fra.example.test",
    ]  # fmt: skip
