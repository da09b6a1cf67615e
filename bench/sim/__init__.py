"""A discrete-event simulation of inference nodes, independent of any routing policy."""
