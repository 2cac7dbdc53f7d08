"""Figures that the project promises, measured in one run beside a bare interpreter. Never part of the tests."""
