"""Reads outputs with SGLang's own detectors: `python peer_sglang.py FOLDER < asked > found`.

FOLDER holds `sglang/srt/function_call` and `parser` as its wheel has them; what these import of the
rest of SGLang, a server with torch, is replaced by as little as the detectors use. Asked and found
are JSON.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Function:
    name: str
    parameters: dict[str, Any]
    description: str = ""
    strict: bool = False


@dataclass
class Tool:
    function: Function
    type: str = "function"


class _Anything:
    """Whatever a module is asked for that plays no part here."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return _Anything()

    def __call__(self, *_: Any, **__: Any) -> Any:
        return False


def module(name: str, **members: Any) -> None:
    made = types.ModuleType(name)
    made.__dict__.update(members)
    made.__dict__.setdefault("__getattr__", lambda _: _Anything)
    sys.modules[name] = made


def prepare(folder: Path) -> None:
    for name in ("sglang", "sglang.srt", "sglang.srt.function_call"):
        module(name, __path__=[str(folder / name.replace(".", "/"))])
    module("sglang.srt.entrypoints.openai.protocol", Tool=Tool, Function=Function)
    module("sglang.srt.environ", envs=_Anything())
    module("sglang.srt.parser", __path__=[str(folder / "sglang" / "srt" / "parser")])
    module("sglang.srt.parser.response_template")
    module("xgrammar")
    module("xgrammar.structural_tag")
    module("orjson", loads=json.loads, JSONDecodeError=ValueError, dumps=json.dumps)
    module("partial_json_parser", loads=lambda text, *_: json.loads(text))
    module("partial_json_parser.core.options")
    module("partial_json_parser.core.exceptions", MalformedJSON=ValueError)


def detector(name: str) -> Any:
    found = importlib.import_module(f"sglang.srt.function_call.{name}")
    [kind] = [
        each
        for key, each in vars(found).items()
        if inspect.isclass(each) and each.__module__ == found.__name__ and key.endswith("Detector")
    ]
    return kind()


def main() -> None:
    prepare(Path(sys.argv[1]))
    asked = json.load(sys.stdin)
    tools = [Tool(Function(name, schema)) for name, schema in asked["tools"].items()]
    found = []
    for output in asked["outputs"]:
        read = detector(asked["detector"]).detect_and_parse(output, tools)
        calls = [(call.name, json.loads(call.parameters)) for call in read.calls]
        found.append([read.normal_text, calls])
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
