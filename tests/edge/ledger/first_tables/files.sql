-- edge/skerry_edge/batch/file_store.py as of 0283c03, and what it wrote
CREATE TABLE IF NOT EXISTS files (
    number INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, id TEXT NOT NULL,
    filename TEXT NOT NULL, purpose TEXT NOT NULL, created REAL NOT NULL, expires REAL NOT NULL,
    size INTEGER NOT NULL DEFAULT 0, UNIQUE (tenant, id)
);
CREATE INDEX IF NOT EXISTS files_expire ON files (expires);
CREATE TABLE IF NOT EXISTS pieces (
    file INTEGER NOT NULL REFERENCES files (number) ON DELETE CASCADE,
    position INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (file, position)
);
INSERT INTO files VALUES (1, 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'file-1', 'in.jsonl', 'batch', 1799999999.0, 1900000000.0, 3);
INSERT INTO pieces VALUES (1, 0, x'7b7d0a');
