"""One script per engine; each speaks the JSON lines of `bench.subjects.peers.Worker`."""
