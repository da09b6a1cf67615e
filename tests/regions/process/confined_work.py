"""A child for the tests of `confined`: what a message says is what it does."""

from __future__ import annotations

import os

from skerry_regions.process import confined

KEPT: list[bytes] = []


def work(message: bytes) -> bytes:
    match message:
        case b"spin":
            while True:
                pass
        case b"grow":
            return bytes(1 << 30)
        case b"fail":
            raise ValueError
        case b"die":
            os.abort()
        case b"where":
            return b"%d %d %d" % (os.nice(0), os.getpid(), len(KEPT))
        case _:
            KEPT.append(message)
            return message[::-1]


if __name__ == "__main__":
    confined.serve(work, cpu_seconds=0.1, memory_bytes=64 << 20)
