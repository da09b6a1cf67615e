"""Caps of accounts in `limits.yaml`: set in its text, of which all else stays."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from skerry_cli.home.shared.limits_file import LimitsFile, with_caps
from skerry_edge.gate.quotas import load_quotas
from skerry_regions.control.desired.views import AccountCaps
from skerry_regions.control.errors import Conflict
from skerry_regions.models.catalog import Catalog

A, B, C = "a" * 32, "0123456789" * 3 + "12", "1e5" + "0" * 29  # two that YAML takes for numbers

FORMS = [
    "",
    "# nothing yet\n",
    "hold_seconds: 3  # of an operator",
    "tenants: []  # none\n",
    f"tenants: [{{account: {A!r}, concurrency: 2}}]\n",
    f"""\
# limits of the platform
every_tenant: {{requests_per_minute: 300}}   # all
tenants:                                    # in place of it
  # the first customer
  - {{account: "{A}", concurrency: 2}}  # since May
  # another
  - account: "{B}"
    websockets: 7   # many
    # and
    per_day: 1

# of models
hold_seconds: 3
""",
    f"tenants:\n- account: '{A}'\n  concurrency: 2\nhold_seconds: 3\n",
]


@pytest.mark.parametrize("text", FORMS)
@pytest.mark.parametrize("id", [A, B, C])
def test_caps_are_set_changed_and_lifted_and_all_else_stays(
    tmp_path: Path, text: str, id: str
) -> None:
    path, shared = tmp_path / "limits.yaml", list[int]()
    path.write_text(text)
    path.chmod(0o640)
    file = LimitsFile(path, Catalog.load, lambda: shared.append(1))
    before = load_quotas(path, Catalog.load())
    was, now = file.change(id, {"per_day": 2.5, "per_month": 40.0})
    assert was.per_month is None
    assert now == AccountCaps(id=id, per_day=2.5, per_month=40.0)
    file.change(id, {"per_day": None})
    file.change(id, {"per_day": None})  # as it is
    after = load_quotas(path, Catalog.load())
    assert (after.account(id).caps.per_day, after.account(id).caps.per_month) == (None, 40.0)
    assert shared == [1, 1]
    for other in {A, B, C, "f" * 32} - {id}:
        assert after.account(other) == before.account(other)
    former, present = before.account(id), after.account(id)
    assert present.requests_per_minute == former.requests_per_minute
    assert (present.concurrency, present.websockets) == (former.concurrency, former.websockets)
    assert (after.hold_seconds, after.every_tenant) == (before.hold_seconds, before.every_tenant)
    for comment in ("# nothing yet", "# of an operator", "# none", "# the first", "# another"):
        assert (comment in path.read_text()) is (comment in text)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [each.id for each in file.caps(["f" * 32])] == sorted({*after.tenants, "f" * 32})


def test_a_file_that_cannot_be_edited_or_used_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "limits.yaml"
    file = LimitsFile(path, Catalog.load, lambda: None)
    path.write_text("every_tenant: 3\n")
    with pytest.raises(Conflict, match=r"limits\.yaml:1"):
        file.change(A, {"per_day": 1.0})
    path.write_text("{hold_seconds: 3}")
    with pytest.raises(Conflict, match="write on the control plane's machine, below `tenants`"):
        file.change(A, {"per_day": 1.0})
    assert path.read_text() == "{hold_seconds: 3}"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(Conflict):
        with_caps("hold_seconds: 3\n...\n", AccountCaps(id=A, per_day=1.0))
