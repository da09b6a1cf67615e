"""Terraform states of earlier versions: files, since the control plane keeps none any more."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

from skerry_regions.private_files import create_file

FOLDER = "terraform-states"  # beside the database

logger = logging.getLogger(__name__)


def save_states(database: sqlite3.Connection, folder: Path) -> None:
    """Write every stored state to `folder/NAME.tfstate`, readable by its owner only.

    A file that is there and says something else stays, and the state goes beside it, as NAME.2 and
    so on. Raises OSError; what was written by then is found again and not written twice.
    """
    states = database.execute("SELECT name, state FROM terraform_states WHERE state IS NOT NULL")
    for name, state in states.fetchall():
        folder.mkdir(mode=0o700, exist_ok=True)
        path, number = folder / f"{name}.tfstate", 1
        while not _holds(path, bytes(state)):
            number += 1
            path = folder / f"{name}.{number}.tfstate"
        logger.warning("the Terraform state %s is in %s now: see docs/terraform.md", name, path)


def _holds(path: Path, content: bytes) -> bool:
    """Return whether the file has this content, after it was written where there was none."""
    create_file(path, content)
    return path.read_bytes() == content
