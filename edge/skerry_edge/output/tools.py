"""Tools that a request offers, in any dialect's form, and how they may be called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from skerry.errors import InvalidInput
from skerry_edge.output.asked import OutputAsked
from skerry_edge.output.one_of import Schema
from skerry_edge.output.schema import checked
from skerry_edge.output.unenforced import Unenforced

MAX_TOOLS: Final = 128
MAX_NAME: Final = 128  # characters
NO_ARGUMENTS: Final[Schema] = {"type": "object", "properties": {}, "additionalProperties": False}
ALLOWED: Final = "allowed_tools"  # a `tool_choice`
JSON_STYLE: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

Choice = Literal["auto", "none", "required"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the caller can run."""

    name: str
    description: str
    declared: Any  # its parameters as the caller wrote them, for the prompt
    parameters: Schema  # as grammars take them
    is_strict: bool = False
    path: str = ""  # of its parameters in the request

    def described(self) -> dict[str, Any]:
        """Describe it as templates and prompts show it."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.declared,
        }
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolbox:
    """The tools of one request, and how they may be called."""

    tools: tuple[Tool, ...]  # that may be called
    listed: tuple[Tool, ...]  # and those beside them that may not, for a prompt that stays the same
    choice: Choice
    is_parallel: bool

    @property
    def shown(self) -> tuple[Tool, ...]:
        """Return those that the model is shown."""
        return () if self.choice == "none" else self.listed


def toolbox(request: OutputAsked, unenforced: Unenforced | None = None) -> Toolbox | None:
    """Return what a request offers; None when it offers nothing. For `unenforced` see `checked`: it
    is used where a tool does not say `strict: true`. Raises `InvalidInput` with the path."""
    field = "tools" if request.tools else "functions"
    given = request.tools or request.functions or []
    choice_field = "tool_choice" if request.tool_choice is not None else "function_call"
    choice = request.tool_choice if request.tool_choice is not None else request.function_call
    for first, second in (("tools", "functions"), ("tool_choice", "function_call")):
        if getattr(request, first) and getattr(request, second):
            raise invalid_tools(second, f"cannot be combined with {first}")
    if not given:
        if choice in (None, "none", "auto"):
            return None
        raise invalid_tools(choice_field, "there are no tools to choose from")
    if len(given) > MAX_TOOLS:
        raise invalid_tools(field, f"more than {MAX_TOOLS} tools")
    tools = [_tool(each, f"{field}[{index}]", unenforced) for index, each in enumerate(given)]
    names = [tool.name for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise invalid_tools(f"{field}[{index}]", f"a tool {name!r} was given before")
    is_named = isinstance(choice, dict) and choice.get("type") != ALLOWED
    kind, chosen = _choice(choice, choice_field)
    for name in sorted(chosen or ()):
        if name not in names:
            raise invalid_tools(choice_field, f"there is no tool {name[:MAX_NAME]!r}")
    callable_ = tuple(tool for tool in tools if chosen is None or tool.name in chosen)
    return Toolbox(
        tools=callable_,
        listed=callable_ if is_named else tuple(tools),
        choice=kind,
        is_parallel=request.parallel_tool_calls is not False and not is_named,
    )


def _tool(given: dict[str, Any], path: str, unenforced: Unenforced | None) -> Tool:
    """Return a tool in any form: OpenAI's, nested, or flat as Workers AI, Responses and Anthropic
    have it."""
    kind = given.get("type", "function")
    if kind != "function":
        raise invalid_tools(f"{path}.type", f"only functions are supported, got {str(kind)[:40]!r}")
    function = given
    if "function" in given:
        path += ".function"
        function = given["function"]
    if not isinstance(function, dict):
        raise invalid_tools(path, "must be an object")
    name = function.get("name")
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        raise invalid_tools(
            f"{path}.name", f"must be a string of 1 to {MAX_NAME} printable characters"
        )
    description = function.get("description") or ""
    if not isinstance(description, str):
        raise invalid_tools(f"{path}.description", "must be a string")
    is_strict = function.get("strict") or False
    if not isinstance(is_strict, bool):
        raise invalid_tools(f"{path}.strict", "must be true or false")
    path += ".input_schema" if "input_schema" in function else ".parameters"
    given_schemas = [function.get(each) for each in ("input_schema", "parameters")]
    declared = next((each for each in given_schemas if each is not None), None)
    declared = NO_ARGUMENTS if declared in (None, {}) else declared
    parameters = checked(declared, path, None if is_strict else unenforced)
    if parameters.get("type", "object") != "object":
        raise invalid_tools(f"{path}.type", "must be 'object'")
    return Tool(
        name=name,
        description=description,
        declared=declared,
        parameters=parameters | {"type": "object"},
        is_strict=is_strict,
        path=path,
    )


def _choice(choice: str | dict[str, Any] | None, path: str) -> tuple[Choice, frozenset[str] | None]:
    """Return what may be called: the kind of choice, and the tools that are named; None for all."""
    match choice:
        case None | "auto":
            return "auto", None
        case "none" | "required":
            return choice, None
        case {"type": "function", "function": {"name": str(name)}} | {"name": str(name)}:
            return "required", frozenset((name,))
        case {"type": "allowed_tools", **fields}:  # nested in chat completions, flat in responses
            return _allowed(fields.get(ALLOWED, fields), path)
        case _:
            raise invalid_tools(
                path, "must be 'auto', 'none', 'required', 'allowed_tools', or name a function"
            )


def _allowed(given: Any, path: str) -> tuple[Choice, frozenset[str]]:
    """Return a part of the tools and how it may be called, as `_choice` does."""
    match given:
        case {"mode": "auto" | "required" as mode, "tools": [*tools]} if tools:
            names = frozenset(map(_name_of, tools))
            if None not in names:
                return mode, frozenset(filter(None, names))
        case _:
            pass
    raise invalid_tools(path, "allowed_tools has a mode, 'auto' or 'required', and names functions")


def _name_of(tool: Any) -> str | None:
    match tool:
        case {"type": "function", "function": {"name": str(name)}}:
            return name
        case {"type": "function", "name": str(name)}:
            return name
        case _:
            return None


def invalid_tools(path: str, what: str) -> InvalidInput:
    return InvalidInput(f"Bad input: {path[:500]}: {what}", param=path[:500])
