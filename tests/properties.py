"""How far tests of properties look: `make test` at the same examples each time, deep runs far."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

DEEPER = 5  # times the examples

# Whether a property holds does not depend on how fast the machine is.
_COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("skerry", _COMMON, derandomize=True)
settings.register_profile("deep", _COMMON, max_examples=100 * DEEPER, print_blob=True)


def examples(number: int, deep: int | None = None) -> int:
    """Return how many examples a test tries that tries `number` of them in `make test`; a deep run
    tries `deep`, else so many times more."""
    deep = number * DEEPER if deep is None else deep
    return deep if settings.get_current_profile_name() == "deep" else number


def settle() -> None:
    """Have the same examples whatever was imported before, which differs from worker to worker.

    Hypothesis tries constants that it finds in the modules of the moment; a deep run lets it.
    """
    if settings.get_current_profile_name() != "deep":
        providers._get_local_constants = Constants
