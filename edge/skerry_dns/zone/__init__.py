"""A zone and its records: from a topology, from a control plane. Imports regions only."""
