"""The provider `skerry`: what the control plane knows, as Terraform's resources.

A kind of resource is one file, listed in `provider.py`.
"""
