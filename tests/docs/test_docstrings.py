"""Docstrings of the product's functions begin with a verb, in the imperative."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXEMPT = "__init__"  # whose docstring is about its parameters
# The trade's; `tell`, `ask`, `become`, `know` and `want` are not. What the list lacks is added.
WORDS = """
Abort Accept Account Acknowledge Add Adjust Adopt Advance Allocate Allow Announce Answer Append
Apply Arrange Assert Assign Assume Attach Attend Authenticate Authorise Await Begin Bind Book Break
Bring Broadcast Build Bury Call Cancel Change Check Choose Claim Clean Clear Clone Close Collect
Combine Compare Compile Complete Compress Compute Configure Confirm Connect Consider Consume Convert
Copy Count Create Cut Decide Declare Decode Decompress Decrypt Defer Define Delay Delete Derive
Describe Detach Detect Discard Divide Do Download Drain Draw Drop Dump Embed Emit Empty Encode
Encrypt End Enqueue Ensure Enter Estimate Evaluate Evict Execute Expand Expect Expire Export Extend
Extract Fail Fetch Fill Filter Find Finish Flush Follow Forget Format Forward Free Gather Generate
Get Give Go Hand Handle Hash Have Hold Ignore Import Increment Index Infer Insert Install Interleave
Interpolate Invalidate Join Judge Keep Kill Launch Lay Learn Lease Leave Let Limit Linger Link
Listen Load Locate Lock Log Look Lower Make Map Mark Match Measure Merge Migrate Move Multiply Name
Narrow Norm Normalise Note Notify Observe Offer Omit Open Overwrite Pack Pad Parse Pass Pause Pay
Permit Pin Ping Place Plan Point Poll Predict Preempt Prefetch Prefill Prepare Prevent Price Print
Probe Project Propagate Prove Publish Pull Push Put Quantise Query Queue Raise Raises Reach Read
Rebuild Receive Reconcile Record Reduce Refine Refresh Refuse Register Reject Release Reload
Remember Remove Rename Render Renew Reorder Repeat Replace Report Request Require Reserve Reset
Resolve Restart Restore Resume Retry Return Reverse Revoke Rewrite Rotate Round Run Save Say Scale
Scan Schedule Search See Select Send Serve Set Settle Share Shift Show Shrink Shut Sign Signal Skip
Sort Spend Split Spread Stack Start Stop Store Strip Submit Subscribe Sum Summarise Suspend Swap
Sweep Switch Take Throw Tokenise Track Transfer Translate Trim Truncate Try Turn Unmap Unpack Unpin
Update Upgrade Upload Use Validate Verify Visit Wait Wake Walk Warn Watch Widen Withdraw Work Wrap
Write Yield
"""
VERBS = frozenset(WORDS.split())


def first_words(source: str) -> Iterator[tuple[int, str]]:
    """Lines of functions, each with its docstring's first word."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != EXEMPT:
            words = (ast.get_docstring(node) or "").split()
            if words:
                yield node.lineno, words[0].rstrip(".,:;")


def packages() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found: list[str] = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    return found


@pytest.mark.parametrize("package", packages())
def test_docstrings_of_functions_begin_with_a_verb(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} {word}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, word in first_words(path.read_text())
        if word not in VERBS
    ]
    assert found == []


def test_what_is_read_of_functions() -> None:
    source = """
class Stove:
    '''Hot.'''
    def __init__(self):
        '''`size` in cm.'''
    def cook(self):
        '''Until done.'''
        async def stir():
            '''Stir: slowly.'''
    def clean(self): pass
"""
    assert list(first_words(source)) == [(6, "Until"), (8, "Stir")]
