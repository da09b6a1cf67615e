"""The processes of a topology: what each is started as, and keeping all of them alive."""
