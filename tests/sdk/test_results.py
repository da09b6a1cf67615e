"""`Result` and `Chunk`: dicts whose keys are attributes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from skerry import Chunk, Result, SkerryError
from skerry._results import decode_json


def test_nested_objects_have_attributes() -> None:
    result = decode_json('{"a": {"b": [{"c": 1}]}, "n": null}')
    assert result.a.b[0].c == result["a"]["b"][0]["c"] == 1
    assert result.n is None
    assert "a" in dir(result)


def test_a_key_like_a_method_is_reached_by_index() -> None:
    result = Result(items=[1], keys="k", get=2)
    assert (result["items"], result["keys"], result["get"]) == ([1], "k", 2)
    assert list(result.items()) == [("items", [1]), ("keys", "k"), ("get", 2)]


def test_a_missing_attribute_names_what_is_there() -> None:
    with pytest.raises(AttributeError, match="no 'respnse'; its keys are: 'response', 'usage'"):
        _ = Result(response="x", usage={}).respnse
    with pytest.raises(AttributeError, match="keys are: none"):
        _ = Result().x
    assert not hasattr(Result(), "x")


def test_attributes_are_for_reading() -> None:
    with pytest.raises(AttributeError):
        Result(a=1).a = 2  # type: ignore[misc]


def test_copies_stay_results() -> None:
    result = Result(a=Result(b=1))
    for twin in (copy.copy(result), copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
        assert twin == result
        assert twin.a.b == 1


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"response": "x"}, "x"),
        ({"response": 7}, "7"),
        ({"response": 1.5}, "1.5"),
        ({"response": False}, "false"),
        ({"response": None}, ""),
        ({}, ""),
        ({"choices": [{"delta": {"content": "y"}}]}, "y"),
        ({"choices": [{"delta": {"content": None}}]}, ""),
        ({"choices": [{"delta": {}}]}, ""),
        ({"choices": []}, ""),
        ({"choices": None}, ""),
    ],
)
def test_a_chunks_text(content: dict[str, Any], text: str) -> None:
    assert Chunk(content).response == text
    assert Chunk(content) == content


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 100_000, b"1" * 5000])
def test_what_is_not_json(data: bytes) -> None:
    with pytest.raises(SkerryError, match="not JSON"):
        decode_json(data)


def test_embeddings_are_an_array() -> None:
    result = Result(shape=[2, 3], data=[[1, 2, 3], [4, 5, 6.5]], pooling="mean")
    array = result.numpy()
    assert (array.shape, array.dtype.name) == ((2, 3), "float32")
    assert array.tolist() == [[1, 2, 3], [4, 5, 6.5]]


@pytest.mark.parametrize("result", [Result(response="x"), Result(shape=[1], data=[[1.0]])])
def test_other_results_are_no_array(result: Result) -> None:
    with pytest.raises(TypeError, match="holds no embeddings"):
        result.numpy()
