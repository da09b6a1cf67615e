"""The parts of `bench.gpu`."""
