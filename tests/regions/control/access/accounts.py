"""Another account than the platform's, and tokens that are made for one."""

from __future__ import annotations

from typing import Any

from tests.regions.control.support import Api

OTHER = "b" * 32


async def make(api: Api, bearer: str, **values: Any) -> Any:
    return await api.http.post(
        "/api_tokens", json={"name": "t"} | values, headers={"authorization": f"Bearer {bearer}"}
    )
