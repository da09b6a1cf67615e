"""Several control planes of one platform, of which one leads. May import the rooms below."""
