"""The Containerfile: a linter's word, and its build stage run as it stands, in a folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILE = ROOT / "infra" / "container" / "Containerfile"
IGNORED = FILE.with_name("Containerfile.dockerignore")


def stages() -> list[list[tuple[str, str]]]:
    """Instructions and their arguments, of each stage; without comments and continuations."""
    text = re.sub(r"^#.*\n", "", FILE.read_text(), flags=re.MULTILINE)
    lines = [line for line in re.sub(r"\\\n", " ", text).splitlines() if line.strip()]
    found: list[list[tuple[str, str]]] = [[]]
    for line in lines:
        instruction, _, arguments = line.strip().partition(" ")
        if instruction == "FROM":
            found.append([])
        found[-1].append((instruction, arguments.strip()))
    return found[1:]


def test_a_linter_finds_nothing() -> None:
    linter = Path(sys.executable).with_name("hadolint")
    assert linter.exists(), "hadolint is missing: it comes with the dependency group `dev`"
    done = subprocess.run(
        [linter, "--no-color", str(FILE)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_nothing_of_the_build_is_in_the_image_but_the_environment() -> None:
    *_, image = stages()
    assert [arguments for name, arguments in image if name == "COPY"] == [
        "--from=build /opt/skerry /opt/skerry"
    ]
    settings = dict(image)
    assert settings["USER"] == "10001:10001"
    assert settings["STOPSIGNAL"] == "SIGTERM"
    assert yaml.safe_load(settings["ENTRYPOINT"]) == ["skerry"]


def test_the_build_sees_what_it_copies() -> None:
    allowed = {line[1:] for line in IGNORED.read_text().splitlines() if line.startswith("!")}
    assert set(copied()) == allowed


def copied() -> Iterator[str]:
    build, _ = stages()
    for name, arguments in build:
        if name == "COPY":
            yield from arguments.split()[:-1]


@pytest.mark.slow
def test_the_build_installs_what_was_tested(tmp_path: Path) -> None:
    """Each step of the build stage, with the folder in the place of `/`."""
    environ = {"PATH": os.environ["PATH"], "EXTRAS": "platform"}
    here = tmp_path
    build, _ = stages()
    for name, arguments in build:
        moved = re.sub(r"(?<![\w.])/(src|opt)\b", rf"{tmp_path}/\1", arguments)
        if name == "WORKDIR":
            here = Path(moved)
            here.mkdir(parents=True)
        elif name == "ENV":
            environ |= dict(each.split("=", 1) for each in moved.split())
        elif name == "COPY":
            *sources, target = moved.split()
            for source in sources:
                copy(ROOT / source, here / target)
        elif name == "RUN":
            subprocess.run(["sh", "-c", moved], cwd=here, env=environ, check=True)
    skerry = tmp_path / "opt" / "skerry"
    subprocess.run([skerry / "bin" / "skerry", "up", "--help"], check=True, capture_output=True)
    [packages] = (skerry / "lib").glob("python*/site-packages")
    installed = {
        each.name.lower().replace("_", "-"): each.version
        for each in distributions(path=[str(packages)])
    }
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
    ours = installed.keys() - {"skerry", "pip", "setuptools"}
    assert {name: installed[name] for name in ours} == {name: pinned.get(name) for name in ours}


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)
