"""One generation from prompt to pieces, in no dialect. May import all rooms but api."""
