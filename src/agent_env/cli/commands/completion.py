"""`agent-env completion SHELL`: the script that makes Tab complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from agent_env.cli.frame import Command, root
from agent_env.cli.output import line

_SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(list(_SHELLS)))
def completion(shell: str) -> None:
    """Print the completion script of SHELL.

    bash: agent-env completion bash > ~/.local/share/bash-completion/completions/agent-env

    zsh: agent-env completion zsh > a folder of $fpath, as _agent-env

    fish: agent-env completion fish > ~/.config/fish/completions/agent-env.fish
    """
    cls = _SHELLS[shell]
    script = cls(root, {}, "agent-env", "_AGENT_ENV_COMPLETE")
    # `source()` would start bash to ask for its version, and the script is often written for another machine.
    line((script.source_template % script.source_vars()).rstrip())
