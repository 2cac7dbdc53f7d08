"""The bundles that ship with agent-env, one folder each. Data only: nothing here is imported."""
