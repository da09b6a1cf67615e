"""The process that checks large schemas: `python -m skerry_edge.output.child`."""

from __future__ import annotations

import json

import msgspec

from skerry.errors import InvalidInput
from skerry_edge.families.family import Family
from skerry_edge.output.asked import OutputAsked
from skerry_edge.output.plan import plan_fields
from skerry_regions.process import confined

CPU_SECONDS = 0.5  # of a request: a megabyte of schemas takes 0.1
MEMORY_BYTES = 256 << 20


def work(message: bytes) -> bytes:
    """Plan the output of a request. Both are JSON, which holds whatever strings a caller sent."""
    family, fields, is_strict = json.loads(message)
    asked = OutputAsked(**fields)
    try:
        plan = plan_fields(msgspec.convert(family, Family), asked, is_strict=is_strict)
    except InvalidInput as error:
        return json.dumps({"refusal": [error.message, error.param]}).encode()
    return json.dumps({"plan": msgspec.to_builtins(plan)}).encode()


if __name__ == "__main__":
    confined.serve(work, cpu_seconds=CPU_SECONDS, memory_bytes=MEMORY_BYTES)
