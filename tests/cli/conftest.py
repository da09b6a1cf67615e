"""The edge of `tests/edge`, for commands that ask one."""

from tests.edge.conftest import edge, shared_deployment

__all__ = ["edge", "shared_deployment"]
