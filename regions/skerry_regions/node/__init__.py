"""One node: its engines, streams, grammars and reports.

May import all rooms but region and control.
"""
