-- edge/skerry_edge/response_cache.py as of 408d6e4, and what it wrote
CREATE TABLE IF NOT EXISTS answers (
    number INTEGER PRIMARY KEY, tenant TEXT NOT NULL, key BLOB NOT NULL, expires REAL NOT NULL,
    size INTEGER NOT NULL, document BLOB NOT NULL, UNIQUE (tenant, key)
);
CREATE INDEX IF NOT EXISTS answers_expires ON answers (expires);
CREATE INDEX IF NOT EXISTS answers_size ON answers (tenant, number, size);
INSERT INTO answers VALUES (1, 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', x'00', 1900000000.0, 2, x'90');
