"""Between text and tokens: templates, tokenising, stops, transcripts.

May import telemetry and the hall.
"""
