"""Real clients against a platform of their own: `make conformance`, or `run.py CLIENT …`.

Each client is installed, pinned, into an environment under `.cache/conformance`. The platform is
`skerry up --detach` on a free port with a SKERRY_HOME of its own. A scenario checks properties that
any correct server has with any model, and closes with one line: PASS or FAIL, passed/total. Checks
for what the platform does not do yet are named in `CLIENTS`, with what they wait for.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import venv
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".cache" / "conformance"
CHAT_MODEL = "@cf/huggingfacetb/smollm2-135m-instruct"
EMBED_MODEL = "@cf/sentence-transformers/all-minilm-l6-v2"
SCENARIO_LIMIT = 900  # seconds

# What checks wait for; all of it belongs to the issue "Every endpoint, every client".
GRAMMAR = "structured output"
TOOLS = "tool calls, which need structured output"
RESPONSES = "the endpoint /ai/v1/responses"


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One client library; the folder of its name holds `scenario.py`."""

    name: str
    requirement: str
    skip: dict[str, str]  # check → what it waits for


CLIENTS = [
    Client(
        name="openai-python",
        requirement="openai==3.52.0",
        skip={
            "structured_parse": GRAMMAR,
            "structured_stream": GRAMMAR,
            "json_object": GRAMMAR,
            "tools_required": TOOLS,
            "tools_named_and_roundtrip": TOOLS,
            "tools_stream": TOOLS,
            "tools_none": TOOLS,
            "responses": RESPONSES,
            "responses_tools": RESPONSES,
            "responses_stream": RESPONSES,
        },
    ),
    Client(
        name="cloudflare-python",
        requirement="cloudflare==5.9.0",
        skip={
            "json_schema": GRAMMAR,
            "tool_call": TOOLS,
        },
    ),
]


def main() -> int:
    """Run the scenarios asked for, by default all; returns 1 when one failed."""
    parser = argparse.ArgumentParser(description="Run real clients against a platform.")
    names = [client.name for client in CLIENTS]
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"of {', '.join(names)}")
    wanted = parser.parse_args().clients or names
    if unknown := set(wanted) - set(names):
        parser.error(f"no such client: {', '.join(sorted(unknown))}")
    clients = [client for client in CLIENTS if client.name in wanted]
    pythons = {client.name: installed(client) for client in clients}
    with platform(CACHE / "home") as variables:
        statuses = [run(client, pythons[client.name], variables) for client in clients]
    return int(any(statuses))


def installed(client: Client) -> Path:
    """The interpreter of the client's environment, made on first use."""
    home = CACHE / client.name
    python, stamp = home / "bin" / "python", home / "requirement"
    if not stamp.exists() or stamp.read_text() != client.requirement:
        print(f"installing {client.requirement} (once)…", flush=True)
        venv.create(home, clear=True, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-qq", client.requirement], check=True)
        stamp.write_text(client.requirement)
    return python


@contextmanager
def platform(home: Path) -> Generator[dict[str, str]]:
    """A platform that runs meanwhile; yields what scenarios read from the environment."""
    skerry = Path(sys.executable).with_name("skerry")
    environ = os.environ | {"SKERRY_HOME": str(home)}
    models = [CHAT_MODEL, EMBED_MODEL]
    named = [part for model in models for part in ("--model", model)]
    subprocess.run([skerry, "up", "--detach", "--port", "0", *named], env=environ, check=True)
    try:
        config = json.loads((home / "config.json").read_text())
        yield {
            "BASE_URL": config["url"],
            "ACCOUNT_ID": config["account_id"],
            "API_TOKEN": config["api_token"],
            "CHAT_MODEL": CHAT_MODEL,
            "EMBED_MODEL": EMBED_MODEL,
        }
    finally:
        subprocess.run([skerry, "down"], env=environ, check=True)


def run(client: Client, python: Path, variables: dict[str, str]) -> int:
    """Run one scenario; prints its closing line and what was left out. Returns its exit status."""
    environ = os.environ | variables | {"SKIP": ",".join(client.skip)}
    scenario = HERE / client.name / "scenario.py"
    status = subprocess.run([python, scenario], env=environ, timeout=SCENARIO_LIMIT).returncode
    for reason in sorted(set(client.skip.values())):
        checks = [check for check, why in client.skip.items() if why == reason]
        print(f"  not run: {', '.join(checks)}; waits for {reason}", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
