"""What a model is: its architecture, its weights by one set of names.

May import weights and the hall.
"""
