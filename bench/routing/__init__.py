"""How requests find their nodes: what ranking costs, rules on the twin, real regions that fail."""
