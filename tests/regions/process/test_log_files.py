"""Logs stay within bounds, and the end of the one before a crash stays readable."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from skerry_regions.process.log_files import NUM_KEPT, open_log, rotate

WRITER = """
import logging, os, sys
from skerry_regions.process.log_files import RotatedErrors
logging.basicConfig(handlers=[RotatedErrors(most=10_000)], level="INFO", format="%(message)s")
for number in range(1000):
    logging.info("line %05d %s", number, "x" * 100)
os.write(1, b"from stdout")
raise SystemExit("the crash")
"""


def test_a_process_rotates_the_file_that_its_stderr_is(tmp_path: Path) -> None:
    log = tmp_path / "node-0.log"
    with os.fdopen(open_log(log), "ab") as file:
        done = subprocess.run(
            [sys.executable, "-c", WRITER], stdout=file, stderr=file, check=False,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
    assert done.returncode == 1
    files = sorted(tmp_path.glob("node-0.log*"))
    assert [each.name for each in files] == ["node-0.log"] + [
        f"node-0.log.{number}" for number in range(1, NUM_KEPT + 1)
    ]
    assert all(each.stat().st_size < 10_200 for each in files)
    newest_first = [log, *files[1:]]
    text = "".join(each.read_text() for each in reversed(newest_first))
    numbers = [int(line.split()[1]) for line in text.splitlines() if line.startswith("line ")]
    assert numbers == list(range(numbers[0], 1000)), "none between is missing"
    assert log.read_text().endswith("from stdoutthe crash\n")


def test_a_start_keeps_what_the_crash_left(tmp_path: Path) -> None:
    log = tmp_path / "edge.log"
    log.write_bytes(b"x" * (10 << 20) + b"the crash")
    os.close(open_log(log))
    assert (tmp_path / "edge.log.1").read_bytes().endswith(b"the crash")
    assert log.read_bytes() == b""
    rotate(log)
    assert not (tmp_path / "edge.log.2").exists()
