"""`skerry run` and `skerry chat`: the SDK from the command line."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from skerry_cli.arguments import Commands, add_command, count
from skerry_cli.home.state import Home
from skerry_cli.output import complain, note, say

if TYPE_CHECKING:
    from skerry import AI

DEFAULT_MODEL = "@cf/huggingfacetb/smollm2-135m-instruct"
HINT = """
Try next:
  skerry chat {model}    a conversation
  skerry run {model} "…" --temperature 1 --seed 7    another answer, and the same one each time
  skerry models list    what else there is; `skerry models pull ID` gets it
"""
CHAT_HELP = "/reset starts again, /exit or Ctrl-D ends, Ctrl-C stops an answer."


def register(commands: Commands) -> None:
    run = add_command(
        commands,
        "run",
        run_model,
        help="ask a model once and print its answer as it comes",
        description="Ask a model once and print its answer as it comes.",
        example=f'skerry run {DEFAULT_MODEL} "Why is the sky blue?"',
    )
    run.add_argument("model", metavar="MODEL", help="id or alias; see `skerry models list`")
    run.add_argument("prompt", metavar="PROMPT", help="the text; - reads it from standard input")
    run.add_argument("--system", metavar="TEXT", help="a system message before the prompt")
    _add_sampling(run)
    chat = add_command(
        commands,
        "chat",
        chat_with_model,
        help="talk with a model",
        description=f"Talk with a model in the terminal. {CHAT_HELP}",
        example=f"skerry chat {DEFAULT_MODEL}",
    )
    chat.add_argument(
        "model", metavar="MODEL", nargs="?", default=DEFAULT_MODEL, help="default: %(default)s"
    )
    chat.add_argument("--system", metavar="TEXT", help="a system message before the conversation")
    _add_sampling(chat)


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--max-tokens", type=count, metavar="N", help="length of an answer")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    parser.add_argument("--seed", type=int, metavar="N", help="the same seed, the same answer")


def _sampling(args: argparse.Namespace) -> dict[str, Any]:
    options = {"max_tokens": args.max_tokens, "temperature": args.temperature, "seed": args.seed}
    return {name: value for name, value in options.items() if value is not None}


def run_model(args: argparse.Namespace) -> int:
    from skerry import AI

    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    if args.system is None:
        inputs: dict[str, Any] = {"prompt": prompt}
    else:
        inputs = {"messages": [_message("system", args.system), _message("user", prompt)]}
    with AI() as ai:
        _stream(ai, args.model, inputs | _sampling(args))
    _hint(args.model)
    return 0


def _hint(model: str) -> None:
    """Print for a person at a terminal, once in the life of a home, what else to try."""
    if not (sys.stdout.isatty() and sys.stderr.isatty()):
        return
    mark = Home.from_environ(os.environ).root / "hinted"
    with contextlib.suppress(OSError):  # no home here, or it was printed before
        mark.touch(mode=0o600, exist_ok=False)
        note(HINT.format(model=model))


def chat_with_model(args: argparse.Namespace) -> int:
    from skerry import AI
    from skerry.errors import SkerryError

    if not sys.stdin.isatty():
        return complain("chat needs a terminal; for a script use `skerry run`.")
    _enable_line_editing()
    opening = [] if args.system is None else [_message("system", args.system)]
    messages = list(opening)
    note(f"{args.model}. {CHAT_HELP}")
    with AI() as ai:
        while (text := _ask()) not in (None, "/exit"):
            if text == "/reset":
                messages = list(opening)
            elif text:
                turn = [*messages, _message("user", text)]
                try:
                    answer = _stream(ai, args.model, {"messages": turn} | _sampling(args))
                except SkerryError as error:
                    complain(str(error))  # the conversation stands as it was before this turn
                else:
                    messages = [*turn, _message("assistant", answer)]
    return 0


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _enable_line_editing() -> None:
    with contextlib.suppress(ImportError):  # not on every platform
        importlib.import_module("readline")  # which gives input() a history


def _ask() -> str | None:
    """Return one line of the person; None at the end of input."""
    try:
        return input("> ").strip()
    except EOFError:
        return None
    except KeyboardInterrupt:
        say("")
        return ""


def _stream(ai: AI, model: str, inputs: dict[str, Any]) -> str:
    """Print an answer as it comes and return it. Ctrl-C stops it: what came so far counts."""
    pieces: list[str] = []
    with ai.run(model, inputs, stream=True) as chunks:
        try:
            for chunk in chunks:
                pieces.append(chunk.response)
                sys.stdout.write(chunk.response)
                sys.stdout.flush()
        except KeyboardInterrupt:
            pass
    say("")
    return "".join(pieces)
