"""When what was written has become so."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from skerry_terraform.kit.planning import Object
from skerry_terraform.provider.client import ControlPlane, Unreachable

log = logging.getLogger(__name__)

DEGRADED_SECONDS = 60.0  # of one failure without a pause: it will not mend itself
NOTHING_TO_RUN = frozenset({"NoModel", "NoModels"})  # reasons: others have to be written first


class NotReady(Exception):
    """It keeps failing, or is gone."""


class ReadinessPoll:
    """Looks at one resource until all of it runs, and reports each change."""

    def __init__(
        self,
        client: ControlPlane,
        collection: str,
        found: Object,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._collection = collection
        self._clock = clock
        self._revision = int(found["meta"]["etag"])
        self._degraded_since: float | None = None
        self.found = found  # as last seen
        self.told = "not looked at yet"
        self.is_away = False  # the control plane, when it was last polled

    def poll(self) -> Object | None:
        """Return the resource, once it is ready. Raises NotReady or Refused.

        What the control plane says of it counts once it has looked at what was written. While it is
        away nothing is known, and nothing counts as failing.
        """
        try:
            found = self._look()
        except Unreachable as error:
            log.info("%s %s: %s", self._collection, self.found["id"], error.detail)
            self.is_away, self._degraded_since = True, None
            return None
        self.is_away = False
        return found

    def _look(self) -> Object | None:
        if self._client.status()["observed_revision"] < self._revision:
            return None
        found = self._client.get(self._collection, self.found["id"])
        if found is None:
            raise NotReady("It was deleted meanwhile")
        self.found = found
        status = found["status"]
        reasons = {condition["reason"] for condition in status["conditions"]}
        self._tell(status)
        if status["phase"] == "ready" or reasons & NOTHING_TO_RUN:
            return found
        self._check_degraded(status["phase"])
        return None

    def _tell(self, status: Object) -> None:
        conditions = [
            f"{condition['reason']}: {condition['message']}"
            for condition in status["conditions"]
            if not condition["status"]
        ]
        told = "; ".join([status["phase"], *conditions])
        if told != self.told:
            log.info("%s %s: %s", self._collection, self.found["id"], told)
        self.told = told

    def _check_degraded(self, phase: str) -> None:
        if phase != "degraded":
            self._degraded_since = None
        elif self._degraded_since is None:
            self._degraded_since = self._clock()
        elif self._clock() - self._degraded_since > DEGRADED_SECONDS:
            raise NotReady("It keeps failing")
