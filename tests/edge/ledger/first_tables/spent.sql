-- edge/skerry_edge/spending.py as of 752ea03, and what it wrote
CREATE TABLE IF NOT EXISTS spent (
    token TEXT NOT NULL, period TEXT NOT NULL, nanodollars INTEGER NOT NULL,
    PRIMARY KEY (token, period)
) WITHOUT ROWID;
INSERT INTO spent VALUES ('0123456789abcdef', '2027-01-15', 1500000000), ('0123456789abcdef', '2027-01', 1500000000);
