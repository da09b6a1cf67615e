"""Commands for what the control plane is to run: get, apply, delete, history, rollback.

May import home.
"""
