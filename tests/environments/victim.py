"""A process that deploys an environment and runs a script in it, to be killed: `python -m tests.environments.victim STATE PROVIDER`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from agent_env.engine import RunOptions
from tests.engine.parts import planned
from tests.environments.test_placement import code, deployment, house


async def main(root: Path, provider: str) -> None:
    async with house(root, provider=provider) as engine:
        run_id = await engine.submit(planned(engine, [deployment(), code(env_id="env")]), RunOptions())
        print(run_id, flush=True)
        await engine.execute(run_id)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
