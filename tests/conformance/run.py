"""Real clients against a platform of their own: `make conformance`, or `run.py CLIENT …`.

With `--topology FILE` the platform is one of several processes, as that file describes them.

Each client is installed, pinned, into an environment under `.cache/conformance`. The platform is
`skerry up --detach` on a free port with a SKERRY_HOME of its own. A scenario checks properties that
any correct server has with any model, and closes with one line: PASS or FAIL, passed/total.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import reference

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".cache" / "conformance"
REFERENCE = CACHE / "random-llama"
CHAT_MODEL = "@cf/huggingfacetb/smollm2-135m-instruct"
EMBED_MODEL = "@cf/sentence-transformers/all-minilm-l6-v2"
SCENARIO_LIMIT = 900  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One client library and what runs it; the folder of its name holds the scenario.

    `command` is a program of the client's environment and its arguments, run in that folder;
    `{BASE_URL}` and the other variables stand for their values.
    """

    name: str
    packages: tuple[str, ...]
    alone: tuple[str, ...] = ()  # packages installed without what they need
    command: tuple[str, ...] = ("python", "scenario.py")
    scenario: str = ""  # the folder of another client, whose scenario and environment this one has
    against_reference: bool = False  # with the random Llama, whose scores transformers knows too

    @property
    def folder(self) -> str:
        return self.scenario or self.name

    @property
    def home(self) -> Path:
        return CACHE / self.folder

    @property
    def path(self) -> str:
        """PATH with the client's own programs first: npm's node where it wants a newer one."""
        own = self.home / ("node_modules/.bin" if self.is_node else "bin")
        return os.pathsep.join((str(own), os.environ["PATH"]))

    @property
    def is_node(self) -> bool:
        return self.command[0] == "node"


LM_EVAL = ("lm-eval[api]==0.4.13", "transformers", "tokenizers", "jinja2", "psutil")
NEEDS_TORCH = ("accelerate",)  # which is lent, see `lend_torch`
CLIENTS = [
    Client(
        name="openai-python",
        packages=("openai==3.54.0",),
    ),
    Client(
        name="cloudflare-python",
        packages=("cloudflare==5.9.0",),
    ),
    Client(
        name="ai-sdk",
        packages=(
            "ai@7.0.173",
            "workers-ai-provider@4.0.0",
            "@ai-sdk/openai-compatible@3.0.92",
            "zod@4",
        ),
        command=("node", "scenario.mjs"),
    ),
    Client(
        name="langchain-cloudflare",
        packages=("langchain-cloudflare==0.4.3",),
    ),
    Client(name="lm-eval", packages=LM_EVAL, alone=NEEDS_TORCH),
    Client(
        name="lm-eval-reference",
        packages=LM_EVAL,
        alone=NEEDS_TORCH,
        scenario="lm-eval",
        against_reference=True,
    ),
    Client(
        name="locust",
        packages=("locust==2.47.0",),
        command=(
            *("python", "-m", "locust", "-f", "locustfile.py", "--headless"),
            *("--users", "8", "--spawn-rate", "8"),
            *("--run-time", "20s", "--host", "{BASE_URL}", "--only-summary", "--loglevel", "ERROR"),
        ),
    ),
    Client(name="anthropic-python", packages=("anthropic==2.12.0",)),
    Client(name="langchain-anthropic", packages=("langchain-anthropic==1.7.7",)),
    Client(name="litellm", packages=("litellm==1.106.2", "mcp==2.3.0")),
    Client(name="pydantic-ai", packages=("pydantic-ai-slim[openai,anthropic]==2.68.0",)),
    Client(
        name="workerd",
        packages=("workerd@1.20261117.1",),
        command=("node", "scenario.mjs"),
    ),
    Client(name="schemathesis", packages=("schemathesis==4.32.5",)),
]


def main() -> int:
    """Run the scenarios asked for, by default all; returns 1 when one failed."""
    parser = argparse.ArgumentParser(description="Run real clients against a platform.")
    names = [client.name for client in CLIENTS]
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"of {', '.join(names)}")
    parser.add_argument("--topology", type=Path, help="a YAML file, such as examples/split.yaml")
    arguments = parser.parse_args()
    wanted, topology = arguments.clients or names, arguments.topology
    if unknown := set(wanted) - set(names):
        parser.error(f"no such client: {', '.join(sorted(unknown))}")
    clients = [client for client in CLIENTS if client.name in wanted and can_run(client, topology)]
    for client in clients:
        install(client)
    with_reference = any(client.against_reference for client in clients)
    with platform(CACHE / "home", topology, with_reference=with_reference) as variables:
        statuses = [run(client, variables) for client in clients]
    return int(any(statuses))


def can_run(client: Client, topology: Path | None) -> bool:
    if client.against_reference and topology is not None:
        print(f"not run: {client.name}, whose model the topology does not have", flush=True)
        return False
    if client.against_reference and importlib.util.find_spec("torch") is None:
        print(f"not run: {client.name}, which needs torch (`make install`)", flush=True)
        return False
    if client.is_node and not (shutil.which("node") and shutil.which("npm")):
        print(f"not run: {client.name}, which needs node and npm", flush=True)
        return False
    return True


def install(client: Client) -> None:
    """Make the client's environment, on first use and when its packages change."""
    stamp, wanted = client.home / "packages", " ".join(client.packages + client.alone)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"installing {wanted} (once)…", flush=True)
    if client.is_node:
        client.home.mkdir(parents=True, exist_ok=True)
        npm = ["npm", "install", "--silent", "--no-fund", "--no-audit", "--prefix", client.home]
        subprocess.run([*npm, *client.packages], check=True)
    else:
        venv.create(client.home, clear=True, with_pip=True)
        pip = [client.home / "bin" / "python", "-m", "pip", "install", "-qq"]
        subprocess.run([*pip, *client.packages], check=True)
        if client.alone:
            subprocess.run([*pip, "--no-deps", *client.alone], check=True)
    stamp.write_text(wanted)


@contextmanager
def platform(
    home: Path, topology: Path | None, *, with_reference: bool
) -> Generator[dict[str, str]]:
    """A platform that runs meanwhile; yields what scenarios read from the environment."""
    program = Path(sys.executable).with_name("skerry")
    environ = os.environ | {"SKERRY_HOME": str(home)}

    def skerry(*arguments: str | Path) -> str:
        command = [program, *arguments]
        done = subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE, text=True)
        return done.stdout.strip()

    skerry("models", "pull", CHAT_MODEL, EMBED_MODEL)
    tokenizer = skerry("models", "show", "--tokenizer-dir", CHAT_MODEL)
    models = [CHAT_MODEL, EMBED_MODEL]
    if with_reference:
        folder = reference.write_reference(REFERENCE, Path(tokenizer))
        skerry("models", "add", folder, "--as", reference.MODEL)
        models.append(reference.MODEL)
    if topology is not None:
        skerry("up", "--detach", "--topology", topology)
    else:
        skerry("up", "--detach", "--port", "0", *(f"--model={model}" for model in models))
    try:
        config = json.loads((home / "config.json").read_text())
        yield {
            "BASE_URL": config["url"],
            "ACCOUNT_ID": config["account_id"],
            "API_TOKEN": config["api_token"],
            "CHAT_MODEL": CHAT_MODEL,
            "EMBED_MODEL": EMBED_MODEL,
            "TOKENIZER": tokenizer,
        }
    finally:
        skerry("down")


def run(client: Client, variables: dict[str, str]) -> int:
    """Run one scenario; prints its closing line. Returns its exit status."""
    if client.against_reference:
        model = str(REFERENCE)
        own = {"CHAT_MODEL": reference.MODEL, "TOKENIZER": model, "HF_REFERENCE": model}
        variables = variables | own
        lend_torch(client)
    environ = os.environ | variables | {"PATH": client.path, "PYTHONPATH": str(HERE)}
    program, *arguments = (part.format(**variables) for part in client.command)
    folder = HERE / client.folder
    if client.is_node:  # which looks for packages beside the scenario
        shutil.copytree(folder, client.home, dirs_exist_ok=True)
        folder = client.home
    done = subprocess.run([program, *arguments], env=environ, cwd=folder, timeout=SCENARIO_LIMIT)
    return done.returncode


def lend_torch(client: Client) -> None:
    """Let the client's environment find, behind its own packages, those of this one: torch is as
    large as all else together."""
    [packages] = client.home.glob("lib/python*/site-packages")
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    (packages / "lent.pth").write_text(f"{Path(spec.origin).parents[1]}\n")


if __name__ == "__main__":
    sys.exit(main())
