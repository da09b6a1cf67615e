"""Money: caps of tokens and accounts, and what they have spent of them."""
