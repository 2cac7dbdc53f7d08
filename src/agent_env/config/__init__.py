"""The configuration that holds here, with where each value came from.

A variable beats the working tree's `.agentenv/config.toml` (found by walking up), which beats `$XDG_CONFIG_HOME/agent-env/config.toml`,
which beats what is built in. `AGENT_ENV_CONFIG` names the one file to read instead of both. Every problem of every file and variable is
reported at once. Values may be references (`env:NAME?default`, `secret:KEY?default`): they stay references here and are resolved when used.
"""

from agent_env.config.checks import is_reference
from agent_env.config.keys import KEYS
from agent_env.config.loading import CONFIG_VARIABLE, TREE_FILE, digest_of, find_tree_file, load_config, user_trust
from agent_env.config.state import NOWHERE, STATE_VARIABLE, state_root
from agent_env.config.values import DEFAULT_AGENT_ID, Config, ConfigFile, Explained, ModelConfig, RunConfig, SandboxConfig, Source

__all__ = [
    "CONFIG_VARIABLE",
    "DEFAULT_AGENT_ID",
    "KEYS",
    "NOWHERE",
    "STATE_VARIABLE",
    "TREE_FILE",
    "Config",
    "ConfigFile",
    "Explained",
    "ModelConfig",
    "RunConfig",
    "SandboxConfig",
    "Source",
    "digest_of",
    "find_tree_file",
    "is_reference",
    "load_config",
    "state_root",
    "user_trust",
]
