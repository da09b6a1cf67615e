"""Bodies to send, and the envelope of an error."""

from __future__ import annotations

from typing import Any

HI = [{"role": "user", "content": "hi"}]


def assert_error(reply: Any, status: int, code: int, *words: str) -> None:
    """Upstream's failure envelope, key order included."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    body = reply.json()
    assert list(body) == ["errors", "success", "result", "messages"]
    assert (body["success"], body["result"], body["messages"]) == (False, {}, [])
    assert [error["code"] for error in body["errors"]] == [code]
    message = body["errors"][0]["message"]
    assert message.startswith("AiError: ")
    assert message.endswith(f" ({reply.headers['cf-ai-req-id']})")
    for word in words:
        assert word in message
