-- edge/skerry_edge/responses_store.py as of 1e94d78, and what it wrote
CREATE TABLE IF NOT EXISTS responses (
    number INTEGER PRIMARY KEY, tenant TEXT NOT NULL, id TEXT NOT NULL, expires REAL NOT NULL,
    size INTEGER NOT NULL, document BLOB NOT NULL, UNIQUE (tenant, id)
);
CREATE INDEX IF NOT EXISTS responses_expires ON responses (expires);
INSERT INTO responses VALUES (1, 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'resp-1', 1900000000.0, 2, x'7b7d');
