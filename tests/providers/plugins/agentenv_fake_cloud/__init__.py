"""A fake cloud for tests: a process that sells machines over a wire of its own, and two providers that buy them."""
