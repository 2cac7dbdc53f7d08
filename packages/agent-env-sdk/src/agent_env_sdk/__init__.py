"""What runs inside environment and agent images: wire types and servers. It knows nothing of the framework."""

__version__ = "0.1.0"
