"""KV on its way from node to node. May import wire, routing and the hall."""
