"""What is wanted: resources, their checks, and the database that holds them. May import errors."""
