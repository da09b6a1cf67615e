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
from tests.e2e.test_join import Platform, Process
from tests.infra.terraform.command import Terraform
from tests.infra.test_systemd import SKERRY, settings

from skerry_regions.model_files import ModelFiles

INFRA = Path(__file__).parents[3] / "infra"
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
@pytest.mark.skipif(shutil.which("cloud-init") is None, reason="cloud-init is not installed")
def test_cloud_init_takes_it(tmp_path: Path, kind: str) -> None:
    text = user_data(
        tmp_path, kind=kind, join_url="https://10.0.0.5:8789", token_script="#!/bin/sh\necho t\n"
    )
    (tmp_path / "user-data").write_text(text)
    subprocess.run(
        ["cloud-init", "schema", "--config-file", str(tmp_path / "user-data")], check=True
    )


@pytest.mark.model
def test_a_machine_that_follows_it_joins(tmp_path: Path, default_model: ModelFiles) -> None:
    """All but packages, pip and systemd, which are played here."""
    platform = Platform(tmp_path, default_model)
    try:
        platform.client.make("regions", name="fra", iata="FRA")
        platform.client.make(
            "pools", name="gpu", region="fra", role="hybrid", model=MODEL, runner="toy", replicas=0
        )
        (tmp_path / "token").write_text(platform.token("--pool", "fra-gpu"))
        (tmp_path / "terraform").mkdir()
        text = user_data(
            tmp_path / "terraform",
            join_url=platform.url,
            token_script=f"#!/bin/sh\nexec cat {tmp_path}/token\n",
            options=["--threads", "1", "--file-tier", "none", "--address", "tcp:127.0.0.1:0"],
        )
        root = tmp_path / "machine"
        root.mkdir()
        skerry = new_home(root, default_model)
        follow(yaml.safe_load(text), root, skerry)
        node = Process(skerry, "node", *command_of(root))
        try:
            node.says("is ready at")
            until(lambda: platform.client.get("pools/fra-gpu")["status"]["ready_replicas"] == 1)
        finally:
            node.end()
        assert node.process.returncode == 0
    finally:
        platform.client.http.close()
        platform.control.end()


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


def command_of(root: Path) -> list[str]:
    """The unit's, as systemd expands it; without the program."""
    text = (root / "etc" / "skerry" / "node.env").read_text()
    environ = dict(line.split("=", 1) for line in text.splitlines())
    command = settings("skerry-node")["ExecStart"].removeprefix(SKERRY)
    command = command.replace("${SKERRY_JOIN}", environ["SKERRY_JOIN"])
    command = command.replace("$SKERRY_OPTIONS", environ["SKERRY_OPTIONS"])
    return shlex.split(moved(command, root))


def moved(text: str, root: Path) -> str:
    for folder in FOLDERS:
        text = text.replace(folder, f"{root}{folder}")
    return text
