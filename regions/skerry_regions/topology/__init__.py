"""A topology file as types, and where airports lie. Imports the hall only."""
