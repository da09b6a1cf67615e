"""A small kit for Terraform providers in Python: plugin protocol 6 over gRPC.

A provider is a `Provider` with lists of `Resource`, `DataSource`, `Ephemeral` and `Function`. Each
declares a `Schema` and works on plain dictionaries; `server.serve` does the rest. The kit knows
nothing of Skerry.
"""
