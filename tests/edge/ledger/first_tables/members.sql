-- regions/skerry_regions/drivers/sqlite_registry.py as of bdc61ef, and what it wrote
CREATE TABLE IF NOT EXISTS members (
    id TEXT PRIMARY KEY, boot TEXT NOT NULL, incarnation INTEGER NOT NULL,
    expires REAL NOT NULL, member BLOB NOT NULL
) WITHOUT ROWID;
INSERT INTO members VALUES ('node-0', 'another boot', 1, 1.0, x'7b7d');
