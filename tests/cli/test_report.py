"""What `skerry up` says to a person."""

from __future__ import annotations

import io
import json
import shlex

from skerry_cli.report import ready_text

READY = {
    "url": "http://127.0.0.1:8787",
    "account_id": "a" * 32,
    "api_token": "skerry_1_secret",
    "models": ["@cf/me/vectors", "@cf/huggingfacetb/smollm2-135m-instruct"],
    "example": "@cf/huggingfacetb/smollm2-135m-instruct",
}


def test_the_curl_command_can_be_pasted() -> None:
    text = ready_text(READY, seconds=1.23, background=True)
    command = shlex.split(text[text.index("curl") :].replace("\\\n", ""))  # as a shell joins lines
    assert command[:3] == [
        "curl",
        "-N",
        f"http://127.0.0.1:8787/client/v4/accounts/{'a' * 32}/ai/run/"
        "@cf/huggingfacetb/smollm2-135m-instruct",
    ]
    assert command[3:5] == ["-H", "Authorization: Bearer skerry_1_secret"]
    assert json.load(io.StringIO(command[6]))["stream"] is True
    assert "ready after 1.2 s" in text
    assert "skerry down" in text
