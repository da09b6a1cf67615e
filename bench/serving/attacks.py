"""What a hostile tenant costs another one, beside a well-behaved one that buys as many tokens.

    python -m bench.serving.attacks [--quick] [--only TEXT] [--json FILE]

    schemas      3,000 constants in a `oneOf`, 44 KB, each time others
    grammars     schemas whose automaton is a product of 27
    prompts      a quarter of a million characters, far beyond the context
    bodies       8 MB of empty lists
    templates    a chat template, from a file of somebody's, that never ends
    connections  more of them than there are places, from one host

Round by round the attacker works while a tenant asks one short prompt after the other for a first
token; then in its place a neighbour sends, evenly over the same time, as many plain requests as the
attacker had answered, of as many tokens.
Both are held to the limits that docs/limits.md begins with: 300 requests a minute, 16 at once.
Wanted: the 99th percentile of the first token beside an attacker is at most 1.5 times that beside
the neighbour, `/healthz` takes at most 100 ms, and memory does not grow by more than 512 MiB, but
for that of KV, which is all in use before.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.measuring import stats
from bench.measuring.run import Run, parser
from bench.server import WORDS, Server
from bench.serving.isolation import first_token, of_another_account
from bench.subjects.models import MODEL, default_model
from bench.subjects.peers import ROOT, Worker
from bench.subjects.platforms import platform

KINDS = ("schemas", "grammars", "prompts", "bodies", "templates", "connections")
FOREIGN = "@cf/attacks/foreign"
TEMPLATE = (
    "{% for m in messages %}{% if m.content == 'boom' %}{% for i in range(9999) %}"
    "{% for j in range(9999) %}x{% endfor %}{% endfor %}{% endif %}{{ m.content }}{% endfor %}"
)
ATTACKED, PEER = "attacked", "neighbour"
LIMITS = "{requests_per_minute: 300, tokens_per_minute: 200_000, concurrency: 16}"
FOLLOW_SECONDS = 2.0  # until an edge has read them
BURST_SECONDS = 10.0  # in which an attacker spends its allowance of a first minute
SECONDS = 10.0  # of one round, of either kind
SAMPLES = 300  # of either kind, at least
MAX_RATIO, MAX_HEALTH_MS, MAX_GROWTH = 1.5, 100.0, 512 << 20
PROBE_SECONDS = 0.1  # between looks at health
MEMORY_EVERY = 5  # of them, at memory
WORDS_ASKED = 16
FILLING, FILLING_WORDS = 5, 2800  # prompts, of a token a word: more than a model's KV


@dataclass
class Outcome:
    """What one kind of attacker did to the others. Milliseconds, bytes."""

    kind: str
    first: stats.Cell
    health: dict[str, list[float]] = field(default_factory=dict)
    growth: int = 0  # of the platform's memory, at its peak while attacked
    got: dict[str, int] = field(default_factory=dict)  # by status
    tokens: int = 0

    def p99(self, system: str) -> float:
        return stats.percentile(self.first.samples[system], 0.99)

    @property
    def ratio(self) -> float:
        return self.p99(ATTACKED) / self.p99(PEER)

    @property
    def slowest_health(self) -> float:
        return max(self.health[ATTACKED])

    @property
    def is_held(self) -> bool:
        return (
            self.ratio <= MAX_RATIO
            and self.slowest_health <= MAX_HEALTH_MS
            and self.growth <= MAX_GROWTH
        )

    def report(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "p99": {system: self.p99(system) for system in self.first.samples},
            "ratio": self.ratio,
            "healthz_ms": self.health,
            "growth_bytes": self.growth,
            "attacker": {"statuses": self.got, "tokens": self.tokens},
            "held": self.is_held,
        }


class Probe:
    """Asks for health, and looks at memory, on a thread of its own until it is closed."""

    def __init__(self, server: Server) -> None:
        self._server, self._over = server, threading.Event()
        self.health: list[float] = []
        self.peak = self.before = memory(server.pid)
        self._thread = threading.Thread(target=self._run, name="probe")
        self._thread.start()

    def _run(self) -> None:
        url = self._server.url.partition("/client/")[0] + "/healthz"
        while not self._over.wait(PROBE_SECONDS):
            begun = time.perf_counter()
            with urllib.request.urlopen(url, timeout=60) as answer:
                answer.read()
            self.health.append((time.perf_counter() - begun) * 1e3)
            if len(self.health) % MEMORY_EVERY == 0:
                self.peak = max(self.peak, memory(self._server.pid))

    def close(self) -> None:
        self._over.set()
        self._thread.join()


def memory(pid: int) -> int:
    """Bytes of a process and its children, but for mapped files; each has its part of what is
    shared."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").glob("*/children"))
        total = sum(memory(int(child)) for task in tasks for child in task.read_text().split())
        rolled = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:  # it has just ended
        return 0
    [kib] = [line.split()[1] for line in rolled.splitlines() if line.startswith("Pss_Anon:")]
    return total + int(kib) * 1024


@contextmanager
def attacked_platform() -> Generator[Server]:
    """`skerry up` with the default model, and the same file with a hostile chat template."""
    weights = default_model()[1].weights
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "foreign.gguf"
        rewrite = [str(Path(sys.executable).with_name("gguf-new-metadata"))]
        rewrite += ["--chat-template", TEMPLATE, "--force", str(weights), str(file)]
        subprocess.run(rewrite, check=True, capture_output=True)
        models = ["--model", MODEL, "--model", FOREIGN]
        with platform("--port", "0", *models, added={FOREIGN: file}) as made:
            pid = int(made.status["edges"][0]["pid"])
            limits = [f"every_tenant: {LIMITS}", "tenants:"]
            account = made.config["account_id"]  # of the tenant whose service this is about
            limits += [f'  - {{account: "{account}", requests_per_minute: 1000000}}']
            (made.home / "limits.yaml").write_text("\n".join(limits) + "\n")
            time.sleep(FOLLOW_SECONDS)
            yield Server("Skerry", made.route("v1/chat/completions"), made.token, pid, made.home)


def asked(chance: random.Random, words: str = "") -> dict[str, Any]:
    """A prompt that was never asked before, a short one unless `words` are given."""
    words = words or " ".join(chance.choice(WORDS) for _ in range(WORDS_ASKED))
    messages = [{"role": "user", "content": f"{chance.getrandbits(64):016x} {words}"}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 1, "min_tokens": 1}
    return body | {"stream": True, "temperature": 0}


def asked_meanwhile(server: Server, seconds: float, chance: random.Random) -> list[float]:
    """First tokens of the tenant whose service this is about, one after the other."""
    end, taken = time.monotonic() + seconds, []
    while time.monotonic() < end:
        taken.append(first_token(server, asked(chance)))
    return taken


def fill_cache(server: Server, chance: random.Random) -> None:
    """Have all KV memory of both models in use: it comes from the system as it fills, half a
    gigabyte, whoever asks."""
    for model in (MODEL, FOREIGN):
        for _ in range(FILLING):
            words = " ".join(chance.choice(WORDS) for _ in range(FILLING_WORDS))
            body = asked(chance, words) | {"model": model, "stream": False}
            headers = {"authorization": f"Bearer {server.token}"}
            request = urllib.request.Request(server.url, json.dumps(body).encode(), headers)
            with urllib.request.urlopen(request, timeout=300) as answer:
                answer.read()


def round_of(
    worker: Worker, server: Server, outcome: Outcome, seconds: float, chance: random.Random
) -> None:
    """The attacker, then the neighbour who buys what the attacker got."""
    bought = {"requests": 0, "tokens": 0}
    for system, kind in ((ATTACKED, outcome.kind), (PEER, "neighbour")):
        order = {"kind": kind, "seconds": seconds + 1.0, **bought}
        probe = Probe(server)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(worker.call, **order)
            time.sleep(0.5)  # it is under way
            try:
                for value in asked_meanwhile(server, seconds, chance):
                    outcome.first.add(system, value)
            finally:
                probe.close()
        outcome.health.setdefault(system, []).extend(probe.health)
        if system == ATTACKED:
            got, tokens = answer.result()["statuses"], answer.result()["tokens"]
            bought = {"requests": got.get("200", 0), "tokens": tokens}
            outcome.tokens += tokens
            outcome.growth = max(outcome.growth, probe.peak - probe.before)
            for status, count in got.items():
                outcome.got[status] = outcome.got.get(status, 0) + count


def measure(
    server: Server, kinds: list[str], samples: int, seconds: float, chance: random.Random
) -> Generator[Outcome]:
    """Each kind of attacker until there are so many samples beside it, and beside its neighbour."""
    hostile = of_another_account(server)
    script = str(ROOT / "bench/workers/attacker.py")
    command = [sys.executable, script, hostile.url, hostile.token, MODEL, FOREIGN]
    worker = Worker("attacker", command)
    try:
        if samples >= SAMPLES:
            fill_cache(server, chance)
        asked_meanwhile(server, 1.0, chance)
        for kind in kinds:
            outcome = Outcome(kind, stats.Cell(kind, "ms"))
            worker.call(kind=kind, seconds=BURST_SECONDS)
            while min(map(len, outcome.first.samples.values()), default=0) < samples:
                round_of(worker, server, outcome, seconds, chance)
            yield outcome
    finally:
        worker.close()


def line(outcome: Outcome) -> str:
    """What a person reads of it."""
    got = ", ".join(f"{count} x {status}" for status, count in sorted(outcome.got.items()))
    healths = " / ".join(f"{max(outcome.health[system]):.0f}" for system in (ATTACKED, PEER))
    medians = [statistics.median(outcome.first.samples[system]) for system in (ATTACKED, PEER)]
    return (
        f"{outcome.kind:12} p50 {medians[0]:6.1f} / {medians[1]:6.1f} ms, "
        f"p99 {outcome.p99(ATTACKED):6.1f} / {outcome.p99(PEER):6.1f} ms = {outcome.ratio:.2f}, "
        f"healthz <= {healths} ms, + {outcome.growth / 2**20:.0f} MiB; "
        f"{len(outcome.first.samples[ATTACKED])} samples; attacker got {got}, "
        f"{outcome.tokens} tokens"
    )


def main() -> int:
    made = parser(__doc__, quick="20 samples of each instead of 300")
    made.add_argument("--only", metavar="TEXT", default="", help="kinds with TEXT in their name")
    given = made.parse_args()
    run = Run(given)
    kinds = [kind for kind in KINDS if given.only in kind]
    samples, seconds = (20, 2.0) if run.is_quick else (SAMPLES, SECONDS)
    outcomes: list[Outcome] = []
    with attacked_platform() as server:
        for outcome in measure(server, kinds, samples, seconds, random.Random(1)):
            run.console.print(line(outcome), highlight=False)
            outcomes.append(outcome)
    run.write([each.first for each in outcomes], attacks=[each.report() for each in outcomes])
    return 0 if all(each.is_held for each in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
