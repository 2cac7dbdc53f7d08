"""Images without an engine: read from registries, folders and archives, and kept unpacked."""
