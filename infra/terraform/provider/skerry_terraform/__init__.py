"""Skerry's Terraform provider: `kit` speaks Terraform's plugin protocol, `provider` the platform's.

See docs/terraform.md.
"""
