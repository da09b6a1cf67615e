"""The real `terraform` command, and a control plane behind a proxy that can fail."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import os
import queue
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest
from tests.infra.terraform.reattached import reattach

from skerry_terraform.install import SOURCE
from skerry_terraform.kit.provider import Provider

SECONDS = 120  # of one command
MISSING = (
    "These tests run the real `terraform`, 1.11 or newer, which no Python package carries. "
    "Put it into PATH, or name it in the variable TERRAFORM; all others run with "
    "`make test ARGS=--ignore=tests/infra/terraform`."
)
HEADER = f"""\
terraform {{
  required_providers {{
    skerry = {{ source = "{SOURCE}" }}
  }}
}}
"""


def terraform_binary() -> str:
    """Fails the test loudly where there is none."""
    found = shutil.which(os.environ.get("TERRAFORM", "terraform"))
    if found is None:
        pytest.fail(MISSING)
    return found


@dataclass
class Terraform:
    """The command in a folder of its own, with a home of its own."""

    folder: Path
    variables: dict[str, str]  # of the environment
    provider: str = 'provider "skerry" {}\n'

    def write(self, text: str) -> None:
        """The configuration; the provider's source and its block are added."""
        (self.folder / "main.tf").write_text(HEADER + self.provider + text)

    @property
    def environ(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if "SKERRY" not in name and not name.startswith("TF_")
        }
        return kept | {
            "HOME": str(self.folder / "home"),
            "TF_CLI_CONFIG_FILE": os.devnull,
            "CHECKPOINT_DISABLE": "1",
            "TF_IN_AUTOMATION": "1",
            "TF_CLI_ARGS": "-no-color",
        } | self.variables  # fmt: skip

    def __call__(self, *arguments: str, rc: int | None = 0) -> str:
        """All that was printed, without line breaks but of JSON; `rc` is the expected status."""
        done = subprocess.run(
            [terraform_binary(), *arguments],
            cwd=self.folder, env=self.environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        assert rc in (None, done.returncode), done.stdout
        return done.stdout if "-json" in arguments else " ".join(done.stdout.split())

    def apply(self, *arguments: str, rc: int = 0) -> str:
        return self("apply", "-auto-approve", *arguments, rc=rc)

    def destroy(self) -> str:
        return self("destroy", "-auto-approve")

    def is_settled(self) -> bool:
        """Whether a plan is empty."""
        told = self("plan", "-detailed-exitcode", rc=None)
        assert "Error" not in told, told
        return "No changes." in told

    def diagnostics(self, *arguments: str) -> list[dict[str, Any]]:
        """Of a command that prints JSON lines, with the source lines that they are about."""
        told = self(*arguments, "-json", rc=None)
        lines = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
        return [line["diagnostic"] for line in lines if line.get("type") == "diagnostic"]

    def state(self) -> dict[str, dict[str, Any]]:
        """By address: values, and whether it is tainted."""
        shown = json.loads(self("show", "-json"))
        resources = shown.get("values", {}).get("root_module", {}).get("resources", [])
        return {
            each["address"]: each["values"] | {"tainted": each.get("tainted", False)}
            for each in resources
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """In a process group of its own, as a shell does."""
        return subprocess.Popen(
            [terraform_binary(), *arguments],
            cwd=self.folder, env=self.environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip


def interrupt(process: subprocess.Popen[str]) -> str:
    """Ctrl-C, which reaches the whole group; what was printed until the end."""
    os.killpg(process.pid, signal.SIGINT)
    return process.communicate(timeout=SECONDS)[0]


@contextlib.contextmanager
def attached(
    folder: Path, provider: Provider[Any], block: str = 'provider "skerry" {}\n'
) -> Generator[Terraform]:
    """Terraform with a provider that runs in this process."""
    (folder / "home").mkdir(parents=True)
    with reattach(provider, SOURCE) as attached:
        variables = {"TF_REATTACH_PROVIDERS": json.dumps(attached.config)}
        yield Terraform(folder, variables, block)


def provider_block(endpoint: str, token: str, **more: int) -> str:
    values = {"endpoint": endpoint, "token": token} | more
    lines = [f"  {name} = {json.dumps(value)}" for name, value in values.items()]
    return "\n".join(['provider "skerry" {', *lines, "}", ""])


# --- faults --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """What happens to the next request of a method, `after` so many that pass."""

    method: str
    status: int = 0  # is answered, without doing anything
    after: int = 0
    meanwhile: Callable[[], None] | None = None  # called in place of an answer, of what was done
    carries_out: bool = True  # before that
    headers: tuple[tuple[str, str], ...] = ()
    loses_answer: bool = False  # of what was done
    seconds: float = 0.0  # that the answer takes longer
    times: int = 1


@dataclass
class FaultyProxy:
    """Between the provider and a control plane, on loopback."""

    target: str
    faults: list[Fault] = field(default_factory=list[Fault])
    requests: queue.SimpleQueue[tuple[str, str, str | None]] = field(
        default_factory=queue.SimpleQueue[tuple[str, str, str | None]]
    )
    """Method, path and idempotency key of each but checks of a plan."""

    def fail(self, fault: Fault) -> None:
        self.faults += [fault] * fault.times

    def seen(self, method: str) -> list[tuple[str, str, str | None]]:
        """The requests of a method since the last look at any."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self.requests.get_nowait())
        return [request for request in found if request[0] == method]

    def next_fault(self, method: str) -> Fault | None:
        for i, fault in enumerate(self.faults):
            if fault.method == method and fault.after:
                self.faults[i] = dataclasses.replace(fault, after=fault.after - 1)
                return None
            if fault.method == method:
                return self.faults.pop(i)
        return None

    @contextlib.contextmanager
    def running(self) -> Generator[str]:
        """Its URL."""
        handler = type("Handler", (_Handler,), {"proxy": self})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    proxy: ClassVar[FaultyProxy]
    protocol_version = "HTTP/1.1"

    def handle_one_request(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle_one_request()

    def _pass_on(self) -> None:
        method, proxy = self.command, self.proxy
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        fault = None
        if not self.path.endswith("/validate"):  # it changes nothing
            proxy.requests.put((method, self.path, self.headers["idempotency-key"]))
            fault = proxy.next_fault(method)
        if fault is not None and fault.status:
            return self._answer(fault.status, b"", fault.headers)
        if fault is not None and fault.meanwhile and not fault.carries_out:
            self.close_connection = True
            return fault.meanwhile()
        url = urlsplit(proxy.target)
        upstream = http.client.HTTPConnection(str(url.hostname), url.port, timeout=SECONDS)
        try:
            upstream.request(method, self.path, body, dict(self.headers.items()))
            answer = upstream.getresponse()
            data = answer.read()
        except OSError:
            self.close_connection = True
            return None
        finally:
            upstream.close()
        if fault is not None and fault.meanwhile:
            self.close_connection = True
            return fault.meanwhile()
        if fault is not None:
            time.sleep(fault.seconds)
        if fault is not None and fault.loses_answer:
            self.close_connection = True
            return None
        return self._answer(answer.status, data, ())

    do_GET = do_POST = do_PATCH = do_DELETE = _pass_on

    def _answer(self, status: int, data: bytes, headers: tuple[tuple[str, str], ...]) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def plugins_of(folder: Path) -> Iterator[int]:
    """Processes of the provider whose home this is."""
    home = f"HOME={folder}/home".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (
                b"terraform-provider-skerry" in (process / "cmdline").read_bytes()
                and home in (process / "environ").read_bytes()
            ):
                yield int(process.name)
