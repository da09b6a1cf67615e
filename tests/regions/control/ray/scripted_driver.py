"""A driver that answers by a script: one line of it for each order, over all its starts. `report …`
is sent; `abort` ends it as Ray's core does; `cut` sends half a line.

python scripted_driver.py FOLDER ADDRESS NAMESPACE DESCRIPTOR
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path


def main(folder: Path, descriptor: int) -> None:
    """Note each order, and do what the script says next."""
    with socket.socket(fileno=descriptor) as line, line.makefile("rwb") as stream:
        for order in stream:
            with (folder / "orders").open("ab") as orders:
                orders.write(order)
            script = (folder / "script").read_text().splitlines()
            what, _, text = script.pop(0).partition(" ") if len(script) > 1 else (
                script[0].partition(" ")
            )  # fmt: skip
            if len(script):
                (folder / "script").write_text("\n".join(script))
            if what == "abort":
                os.abort()
            stream.write(text.encode() + (b"\n" if what == "report" else b""))
            stream.flush()
            if what == "cut":
                sys.exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[-1]))
