"""Families of decoders, one file each, found by `registry`.

May import the files beside this room.
"""
