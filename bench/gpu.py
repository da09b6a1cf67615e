"""`python -m bench.gpu --json FILE`: the Torch runner on a GPU, beside its peers and its ceilings.

A machine with numpy, torch and triton is enough; with transformers that is a peer too. Ceilings are
measured in the same run, and figures are given as shares of the one that bounds them. Parts that
do not fit into the time are left out, and `--only` and `--skip` name some of them. `--dry` runs
the same code in tiny shapes, on the CPU where there is no GPU: its figures mean nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bench.device.gpu_program import Part, Program, choose_device, run


def _parts(is_dry: bool) -> tuple[dict[str, str], Sequence[Part]]:
    choose_device(is_dry=is_dry)
    from bench.device.gpu_figures import parts
    from bench.device.gpu_subject import opened

    subject = opened(is_dry=is_dry)
    return subject.describe(), parts(subject)


PROGRAM = Program("bench.gpu", __doc__, 520.0, _parts)

if __name__ == "__main__":
    sys.exit(run(PROGRAM))
