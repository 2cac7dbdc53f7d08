"""The product from outside, by the ids of its specification. `python -m tests.acceptance` prints which test proves which id."""
