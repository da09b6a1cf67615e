"""Nodes on Ray clusters: the launcher, a driver for each cluster, a keeper for each node.

launcher ── lines of JSON ── driver, a process ── Ray ── keeper, an actor ── node

Only the driver imports Ray, and the keeper within an actor.
"""
