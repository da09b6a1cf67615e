"""Nodes as pods of Kubernetes: a StatefulSet per pool, through the API server."""
