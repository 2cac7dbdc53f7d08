"""Kills real processes at random moments of real runs: `python -m tests.chaos --kills N [--seed S]`."""
