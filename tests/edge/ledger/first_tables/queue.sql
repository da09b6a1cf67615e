-- regions/skerry_regions/drivers/sqlite_queue.py as of 18248ae, and what it wrote
CREATE TABLE IF NOT EXISTS batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL,
    token TEXT NOT NULL, kind TEXT NOT NULL, model TEXT NOT NULL, target TEXT NOT NULL,
    meta BLOB NOT NULL, key TEXT, fingerprint BLOB NOT NULL,
    created REAL NOT NULL, expires REAL NOT NULL, started REAL, ended REAL, ending TEXT,
    closed REAL, total INTEGER NOT NULL,
    succeeded INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0,
    dead INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL, UNIQUE (tenant, key)
);
CREATE INDEX IF NOT EXISTS batches_of_tenant ON batches (tenant, number);
CREATE INDEX IF NOT EXISTS batches_open ON batches (number) WHERE ended IS NULL;
CREATE INDEX IF NOT EXISTS batches_unclosed ON batches (number) WHERE closed IS NULL;
CREATE TABLE IF NOT EXISTS items (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    batch INTEGER NOT NULL REFERENCES batches (number) ON DELETE CASCADE,
    position INTEGER NOT NULL, reference TEXT, payload BLOB NOT NULL,
    state TEXT NOT NULL DEFAULT 'waiting', attempts INTEGER NOT NULL DEFAULT 0,
    due REAL NOT NULL DEFAULT 0, owner TEXT, result BLOB NOT NULL DEFAULT x'',
    UNIQUE (batch, position)
);
CREATE INDEX IF NOT EXISTS items_waiting ON items (batch, due, position) WHERE state = 'waiting';
CREATE INDEX IF NOT EXISTS items_owned ON items (owner) WHERE owner IS NOT NULL;
CREATE TABLE IF NOT EXISTS turns (tenant TEXT PRIMARY KEY, turn INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS leader (
    one INTEGER PRIMARY KEY CHECK (one = 1), owner TEXT NOT NULL, until REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS boot (one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL);
INSERT INTO batches (id, tenant, token, kind, model, target, meta, fingerprint, created, expires, total, bytes) VALUES ('batch-1', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', '0123456789abcdef', 'batch', '@cf/m', '/v1/chat/completions', x'', x'', 1799999999.0, 1900000000.0, 1, 2);
INSERT INTO items (batch, position, payload) VALUES (1, 0, x'7b7d');
