"""The agent side of the SDK."""
