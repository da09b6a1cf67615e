"""What a process says to whoever waits for it, and that nobody waiting is no reason to fail."""

from __future__ import annotations

import json
import socket
from typing import Any

from skerry_regions.process.lifeline import Lifeline

READY = {"url": "http://127.0.0.1:8787", "models": ["@cf/me/other"]}


def pair() -> tuple[socket.socket, Lifeline]:
    ours, theirs = socket.socketpair()
    return ours, Lifeline(theirs.detach())


def read_all(ours: socket.socket) -> list[dict[str, Any]]:
    with ours, ours.makefile(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def test_progress_comes_by_the_hundredth_and_then_ready() -> None:
    ours, lifeline = pair()
    for share in (0.0, 0.0001, 0.5, 1.0):
        lifeline.progress("downloading", share)
    lifeline.ready(READY)
    lifeline.close()
    assert read_all(ours) == [
        {"what": "downloading", "share": 0.0},
        {"what": "downloading", "share": 0.5},
        {"what": "downloading", "share": 1.0},
        {"ready": READY},
    ]


def test_nobody_waiting_is_no_reason_to_fail() -> None:
    ours, lifeline = pair()
    ours.close()
    lifeline.progress("downloading", 0.5)
    lifeline.ready(READY)
    lifeline.close()
