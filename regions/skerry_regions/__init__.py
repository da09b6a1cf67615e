"""Control plane and data plane between machines. Import-free: the edge runs this file too."""
