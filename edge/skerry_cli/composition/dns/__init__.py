"""`skerry dns`: a live zone, its contents and its server. May import the rooms below."""
