"""The environment side of the SDK."""
