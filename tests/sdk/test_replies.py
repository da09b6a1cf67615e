"""From a reply's status, headers and body to the right error, whatever the body holds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry import errors
from skerry._replies import error_from
from skerry._results import media_type
from skerry.errors import SkerryError

JSON_HEADERS = {"content-type": "application/json; charset=utf-8"}


def error(status: int, content: Any, headers: dict[str, str] | None = None) -> SkerryError:
    return error_from(status, JSON_HEADERS | (headers or {}), json.dumps(content).encode(), 0.0)


@pytest.mark.parametrize("number", sorted(SkerryError.by_number.keys() - {0}))
def test_each_number_finds_its_class(number: int) -> None:
    kind = SkerryError.by_number[number]
    found = error(kind.status, {"errors": [{"code": number, "message": "m"}], "success": False})
    assert type(found) is kind
    assert (found.number, found.message) == (number, "m")


@pytest.mark.parametrize("code", sorted(SkerryError.by_code))
def test_each_name_finds_its_class(code: str) -> None:
    found = error(400, {"error": {"code": code, "message": "m", "param": "p"}})
    assert type(found) is SkerryError.by_code[code]
    assert (found.message, found.param, found.http_status) == ("m", "p", 400)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.RequestError),
        (401, errors.AuthenticationError),
        (403, errors.PermissionDenied),
        (404, errors.NotFound),
        (405, errors.MethodNotAllowed),
        (408, errors.RequestTimeout),
        (413, errors.BodyTooLarge),
        (422, errors.InvalidInput),
        (429, errors.Overloaded),
        (500, errors.InternalError),
        (502, errors.Unavailable),
        (503, errors.Unavailable),
        (504, errors.Unavailable),
    ],
)
def test_an_unknown_number_leaves_it_to_the_status(status: int, kind: type[SkerryError]) -> None:
    found = error(status, {"errors": [{"code": 99999, "message": "m"}]})
    assert type(found) is kind
    assert (found.number, found.http_status) == (99999, status)


def test_a_name_wins_over_a_number() -> None:
    both = {"error": {"code": "timeout", "message": "slow"}, "errors": [{"code": 3040}]}
    found = error(408, both)
    assert type(found) is errors.RequestTimeout
    assert found.number == 3040


def test_an_error_as_plain_text() -> None:
    assert error(400, {"error": "no good"}).message == "no good"


def test_request_ids() -> None:
    ids = {"cf-ai-req-id": "a", "x-request-id": "b", "cf-ray": "c"}
    assert error(400, {}, ids).request_id == "a"
    del ids["cf-ai-req-id"]
    assert error(400, {}, ids).request_id == "b"
    assert error(400, {}).request_id is None


def test_how_it_reads() -> None:
    found = error(429, {"errors": [{"code": 3040, "message": "AiError: AiError: Full"}]})
    assert str(found) == "3040: Full"
    found.request_id = "r-1"
    assert str(found) == "3040: Full (request r-1)"
    dialect = {"errors": [{"code": 3040, "message": "AiError: Full (r-2)"}]}
    assert str(error(429, dialect, {"cf-ai-req-id": "r-2"})) == "3040: Full (request r-2)"


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["error", "errors", "code", "message", "param", "success", "retry_after", "result"]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=12,
)


@given(status=st.integers(300, 599), content=JSON_VALUES)
def test_any_json_makes_an_error(status: int, content: Any) -> None:
    found = error(status, content)
    assert found.http_status == status
    assert isinstance(found.message, str)
    assert isinstance(found.number, int)
    assert found.retry_after is None or 0 <= found.retry_after < float("inf")


@given(status=st.integers(300, 599), body=st.binary(max_size=64))
def test_any_bytes_make_an_error(status: int, body: bytes) -> None:
    for headers in ({}, JSON_HEADERS, {"content-type": "text/html"}):
        assert error_from(status, headers, body, 0.0).http_status == status


def test_media_types() -> None:
    assert media_type({"content-type": "Text/Event-Stream; charset=utf-8"}) == "text/event-stream"
    assert media_type({}) == ""
