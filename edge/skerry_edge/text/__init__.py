"""Between text and tokens: templates, tokenising, stops, transcripts.

May import telemetry, families and the hall.
"""
