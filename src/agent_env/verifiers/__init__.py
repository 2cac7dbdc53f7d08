"""Verifiers: steps that score. A fault of the world never becomes a number; what nothing scored is unscored, which is not 0."""

from agent_env.verifiers.scoring import Aggregator, aggregate

__all__ = ["Aggregator", "aggregate"]
