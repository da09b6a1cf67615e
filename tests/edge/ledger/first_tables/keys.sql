-- edge/skerry_edge/idempotency.py as of 3240841, and what it wrote
CREATE TABLE IF NOT EXISTS keys (
    number INTEGER PRIMARY KEY, tenant TEXT NOT NULL, key TEXT NOT NULL, request BLOB NOT NULL,
    expires REAL NOT NULL, UNIQUE (tenant, key)
);
CREATE INDEX IF NOT EXISTS keys_expires ON keys (expires);
CREATE INDEX IF NOT EXISTS keys_tenant ON keys (tenant, number);
INSERT INTO keys VALUES (1, 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'k-1', x'646967657374', 1900000000.0);
