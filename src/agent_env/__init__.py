"""Build, deploy and run agentic environments and the tasks that grade agents inside them."""

__version__ = "0.1.0"
