"""`skerry models`: what the catalog has, what is installed, and getting more. May import all rooms
of the command below `platform`."""
