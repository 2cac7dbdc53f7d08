"""`agent-env completion SHELL`: the script that makes Tab complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from agent_env.cli.frame import Command, root
from agent_env.cli.output import line

BASH = r"""
_agent_env_completion() {
    local IFS=$'\n' response completion type value word glued='' front='' kind=''
    local -a words=()

    # bash ends a word at a colon; here one stands inside words, such as RUN:PLACE and BUNDLE:NAME.
    for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
        if [[ ( -n $glued || $word == : ) && ${#words[@]} -gt 0 ]]; then
            words[-1]+=$word
        else
            words+=("$word")
        fi
        [[ $word == : ]] && glued=1 || glued=''
    done
    word=${words[-1]}
    if [[ $word == *:* && $COMP_WORDBREAKS == *:* ]]; then
        front=${word%"${word##*:}"}
    fi

    response=$(env COMP_WORDS="${words[*]}" COMP_CWORD=$((${#words[@]} - 1)) _AGENT_ENV_COMPLETE=bash_complete "$1")

    # Names of ours and files stand beside each other: a bundle is either.
    for completion in $response; do
        IFS=',' read -r type value <<< "$completion"
        case $type in
            plain) COMPREPLY+=("${value#"$front"}"); [[ $value == */* ]] && kind=ids ;;
            dir) COMPREPLY+=($(compgen -d -- "$value")); kind=${kind:-files} ;;
            file) COMPREPLY+=($(compgen -f -- "$value")); kind=${kind:-files} ;;
        esac
    done
    # Of what looks like paths, bash would list the last part alone, and ids look so.
    [[ $kind == files ]] && compopt -o filenames 2>/dev/null
    return 0
}

complete -o nosort -F _agent_env_completion agent-env
"""
"""In place of click's, which offers nothing but files as soon as files are among what it offers."""

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
    if shell == "bash":
        line(BASH.strip())
        return
    line((script.source_template % script.source_vars()).rstrip())
