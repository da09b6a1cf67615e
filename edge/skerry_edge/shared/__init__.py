"""What edges of many machines keep together, in JetStream: the contracts of `ledger` over NATS."""
