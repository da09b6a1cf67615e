"""The control plane: what an operator wants, kept in SQLite, served over HTTP, and made so."""
