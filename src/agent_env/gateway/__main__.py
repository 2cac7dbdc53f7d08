"""`python -m agent_env.gateway [--config FILE]`: serves until it is told to stop."""

from __future__ import annotations

import argparse
import logging
import os
import sys

from agent_env.errors import AgentEnvError
from agent_env.gateway.config import read_config, settings
from agent_env.gateway.supervisor import supervise


def main(argv: list[str] | None = None) -> int:
    """Runs the gateway. Gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m agent_env.gateway", description="The gateway of an environment.")
    parser.add_argument(
        "--config", metavar="FILE", help="its JSON document; without it AGENTENV_GATEWAY_CONFIG or the reference's variables"
    )
    given = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        return supervise(settings(read_config(given.config, os.environ), os.environ))
    except AgentEnvError as error:
        sys.stderr.write(f"gateway: {error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
