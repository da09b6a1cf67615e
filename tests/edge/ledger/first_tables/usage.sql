-- edge/skerry_edge/usage_journal.py as of 408d6e4, and what it wrote
CREATE TABLE IF NOT EXISTS usage (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, edge TEXT NOT NULL, life TEXT NOT NULL,
    tenant TEXT NOT NULL, token TEXT NOT NULL, model TEXT NOT NULL,
    admitted REAL NOT NULL, settled REAL, outcome TEXT NOT NULL DEFAULT 'running',
    prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0, queue_seconds REAL NOT NULL DEFAULT 0,
    prefill_seconds REAL NOT NULL DEFAULT 0, decode_seconds REAL NOT NULL DEFAULT 0,
    prompt_price REAL NOT NULL, cached_price REAL NOT NULL, output_price REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS usage_admitted ON usage (admitted);
CREATE INDEX IF NOT EXISTS usage_tenant ON usage (tenant, admitted);
CREATE INDEX IF NOT EXISTS usage_token ON usage (token, admitted);
CREATE INDEX IF NOT EXISTS usage_unsettled ON usage (edge) WHERE settled IS NULL;
INSERT INTO usage VALUES (1, 'request-1', 'edge', 'life', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', '0123456789abcdef', '@cf/m', 1799999999.0, 1799999999.5, 'completed', 5, 0, 7, 0.1, 0.2, 0.3, 1.0, 0.5, 2.0);
