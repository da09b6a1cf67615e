"""`python -m bench.gpu_sweep --json FILE`: each kernel with other warps, stages and tiles.

In one process, the candidates of a call in turn, in another order each time: the least time, the
median and the distance of the quartiles of each, its share of the roof, and whether it wins over
what is launched now, by more than the spread of both; then those that won together. What makes
other values is left out. The first cases matter most; `--only` names others. `--dry` runs the same
code in tiny shapes, in Triton's interpreter where there is no GPU: nothing wins there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from bench.device.gpu_program import Part, Program, choose_device, run
from bench.device.gpu_report import Row

if TYPE_CHECKING:
    from bench.device.gpu_subject import Subject

_SECONDS = 16.0  # of a case: about ten candidates are compiled


def _parts(is_dry: bool) -> tuple[dict[str, str], Sequence[Part]]:
    choose_device(is_dry=is_dry)
    from bench.device.gpu_subject import opened

    subject = opened(is_dry=is_dry)
    return subject.describe(), parts_of(subject)


def parts_of(subject: Subject) -> list[Part]:
    from bench.device.sweep.cases import cases
    from bench.device.sweep.trials import Case, sweep

    def swept(make: Callable[[], Case]) -> Sequence[Row]:
        return sweep(subject, make(), _SECONDS)

    return [Part(name, _SECONDS + 4, partial(swept, make)) for name, make in cases(subject)]


PROGRAM = Program("bench.gpu_sweep", __doc__, 290.0, _parts)

if __name__ == "__main__":
    sys.exit(run(PROGRAM))
