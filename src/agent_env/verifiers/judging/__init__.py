"""Judging answers with a model: what it is shown, how it is asked, how far it agrees with itself and with labels.

Pure but for `judges`, which ask. Nothing here knows of steps' fields or of where scores are kept.
"""
