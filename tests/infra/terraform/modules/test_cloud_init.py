"""User data of `modules/machine`: cloud-init takes it, and a machine that follows it joins."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.command import MODEL, Skerry, new_home, until
from tests.e2e.control.test_join import Platform, Process
from tests.infra.terraform.command import Terraform
from tests.infra.test_systemd import SKERRY, settings
from tests.tools import program

from skerry import AI
from skerry_cli import build_parser
from skerry_regions.models.model_files import ModelFiles

INFRA = Path(__file__).parents[4] / "infra"
FOLDERS = ("/etc/skerry", "/etc/systemd", "/opt/skerry", "/usr/local/sbin", "/var/lib/skerry")


def user_data(folder: Path, **variables: Any) -> str:
    """What the module answers."""
    shutil.copytree(INFRA, folder / "infra")
    module = {"source": "./infra/terraform/modules/machine", **variables}
    output = {"user_data": {"value": "${module.machine.user_data}"}}
    text = json.dumps({"module": {"machine": module}, "output": output})
    (folder / "main.tf.json").write_text(text)
    terraform = Terraform(folder, {})
    terraform("init")
    terraform.apply()
    told: str = json.loads(terraform("output", "-json", "user_data"))
    return told


@pytest.mark.parametrize("kind", ["node", "edge"])
def test_cloud_init_takes_it(tmp_path: Path, kind: str) -> None:
    text = user_data(
        tmp_path, kind=kind, join_url="https://10.0.0.5:8789", token_script="#!/bin/sh\necho t\n"
    )
    (tmp_path / "user-data").write_text(text)
    subprocess.run(
        [program("cloud-init", "cloud-init"), "schema", "--config-file", tmp_path / "user-data"],
        check=True,
    )


@pytest.mark.parametrize("kind", ["node", "edge"])
def test_a_machine_that_follows_it_runs_a_command_that_joins(tmp_path: Path, kind: str) -> None:
    (tmp_path / "token").write_text("t")
    text = user_data(
        tmp_path / "module",
        kind=kind,
        join_url="https://10.0.0.5:8789",
        token_script=f"#!/bin/sh\nexec cat {tmp_path}/token\n",
        options=["--advertise", "203.0.113.7"],
    )
    follow(yaml.safe_load(text), tmp_path, Skerry(tmp_path / "home"))
    args = build_parser().parse_args(command_of(kind, tmp_path))
    assert (args.join, args.advertise) == ("https://10.0.0.5:8789", "203.0.113.7")
    assert args.token_file.read_text() == "t"


def test_a_machine_waits_for_its_token(tmp_path: Path) -> None:
    """The first answer is empty, as of a permission that comes late."""
    text = user_data(
        tmp_path / "module",
        kind="node",
        join_url="https://10.0.0.5:8789",
        token_script=f"#!/bin/sh\n[ -e {tmp_path}/asked ] && echo t\ntouch {tmp_path}/asked\n",
    )
    config = yaml.safe_load(text)
    config["runcmd"][0][-1] = config["runcmd"][0][-1].replace("sleep 5", "sleep 0.01")
    follow(config, tmp_path, Skerry(tmp_path / "home"))
    assert (tmp_path / "etc" / "skerry" / "join-token").read_text() == "t\n"


@pytest.mark.model
@pytest.mark.slow
def test_machines_that_follow_it_are_a_platform(
    tmp_path_factory: pytest.TempPathFactory, default_model: ModelFiles
) -> None:
    """A node and an edge. Packages, pip and systemd are played here; all else is done."""
    platform = Platform(tmp_path_factory.mktemp("joined"), default_model)
    machines: list[Process] = []
    try:
        platform.start()
        platform.client.make("regions", name="fra", iata="FRA")
        platform.client.make(
            "pools", name="gpu", region="fra", role="hybrid", model=MODEL, runner="toy", replicas=0
        )
        node = ["--threads", "1", "--file-tier", "none", "--address", "tcp:127.0.0.1:0"]
        machines.append(machine(platform, "node", platform.token("--pool", "fra-gpu"), node))
        machines[0].says("is ready at")
        until(lambda: platform.client.get("pools/fra-gpu")["status"]["ready_replicas"] == 1)

        token = platform.token("--region", "fra", "--role", "edge")
        machines.append(machine(platform, "edge", token, ["--port", "0"]))
        url = machines[1].says(r"is ready at (\S+)\.\n")[1]
        client = platform.client
        with AI(base_url=url, account_id=client.account, api_token=client.token) as ai:
            answer = ai.run(MODEL, {"prompt": "The sea is", "max_tokens": 4})
        assert answer["usage"]["completion_tokens"] == 4
        client.http.close()
    finally:
        for process in reversed(machines):
            process.end()
        platform.close()
    assert [process.process.returncode for process in machines] == [0, 0]


def machine(platform: Platform, kind: str, token: str, options: list[str]) -> Process:
    """One that cloud-init and systemd have started."""
    folder = platform.folder / kind
    root = folder / "root"  # short names: unix sockets in it have at most 107 characters
    root.mkdir(parents=True)
    (folder / "token").write_text(token)
    text = user_data(
        folder,
        kind=kind,
        join_url=platform.url,
        token_script=f"#!/bin/sh\nexec cat {folder}/token\n",
        options=options,
    )
    skerry = new_home(root, platform.model)
    follow(yaml.safe_load(text), root, skerry)
    return Process(skerry, kind, *command_of(kind, root))


def follow(config: dict[str, Any], root: Path, skerry: Skerry) -> None:
    """Do what cloud-init does, with `root` in the place of `/`."""
    (root / "var" / "lib").mkdir(parents=True)
    (root / "var" / "lib" / "skerry").symlink_to(skerry.home)
    for file in config["write_files"]:
        path = Path(moved(file["path"], root))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(moved(file["content"], root))
        path.chmod(int(file.get("permissions", "0644"), 8))
    fetch, *rest = config["runcmd"]
    group = moved(fetch[-1], root).replace("chgrp skerry", f"chgrp {os.getgid()}")
    subprocess.run([*fetch[:-1], group], check=True)
    token = root / "etc" / "skerry" / "join-token"
    assert token.stat().st_mode & 0o777 == 0o640
    assert [command[:3] for command in rest] == [
        ["python3", "-m", "venv"],
        ["/opt/skerry/bin/python", "-m", "pip"],
        ["systemctl", "daemon-reload"],
        ["systemctl", "enable", "--now"],
    ]


def command_of(kind: str, root: Path) -> list[str]:
    """The unit's, as systemd expands it; without the program."""
    text = (root / "etc" / "skerry" / f"{kind}.env").read_text()
    environ = dict(line.split("=", 1) for line in text.splitlines())
    command = settings(f"skerry-{kind}")["ExecStart"].removeprefix(SKERRY)
    command = command.replace("${SKERRY_JOIN}", environ["SKERRY_JOIN"])
    command = command.replace("$SKERRY_OPTIONS", environ["SKERRY_OPTIONS"])
    return shlex.split(moved(command, root))


def moved(text: str, root: Path) -> str:
    for folder in FOLDERS:
        text = text.replace(folder, f"{root}{folder}")
    return text
