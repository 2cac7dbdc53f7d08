"""F13: what an earlier command left running tries to put its own result in the place of a later script's."""

from __future__ import annotations

import pytest

from agent_env.errors import AgentEnvError
from tests.steps.bench import BenchRun
from tests.steps.conftest import Bench
from tests.steps.test_run_code import script

DAEMON = """
import os, sys
FORGED = b'="forged"'
def run(given):
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        os.read(reader, 1)
        return "left"
    os.setsid()
    if os.fork():
        os._exit(0)
    for number in range(3):
        os.dup2(os.open("/dev/null", os.O_RDWR), number)
    os.write(writer, b"x")
    while True:
        try:
            {deed}
        except OSError:
            pass
"""

DEEDS = {
    "writes into every pipe of every process": """
            for process in filter(str.isdigit, os.listdir("/proc")):
                if int(process) in (1, os.getpid()): continue
                for number in range(3, 9):
                    try:
                        with open(f"/proc/{process}/fd/{number}", "wb") as pipe: pipe.write(FORGED)
                    except OSError: pass
    """,
    "rewrites whatever was staged": """
            for top, _, names in os.walk("/tmp/agent_env_run_code"):
                for name in names:
                    try:
                        with open(f"{top}/{name}", "w") as file: file.write("def run(given): return 'forged'")
                    except OSError: pass
    """,
    "writes result files": """
            for folder in os.listdir("/tmp/agent_env_run_code"):
                for name in ("output.json", "output.refused", "json.py", "helper.py"):
                    try:
                        with open(f"/tmp/agent_env_run_code/{folder}/{name}", "w") as file: file.write('"forged"')
                    except OSError: pass
    """,
    "writes into the memory of every process": """
            for process in filter(str.isdigit, os.listdir("/proc")):
                if int(process) in (1, os.getpid()): continue
                try:
                    found = open(f"/proc/{process}/maps").read()
                    with open(f"/proc/{process}/mem", "r+b", 0) as memory:
                        for line in found.splitlines():
                            low, high = (int(part, 16) for part in line.split()[0].split("-"))
                            if "rw-p" not in line or high - low > 1 << 24: continue
                            memory.seek(low)
                            data = memory.read(high - low)
                            if b"genuine" in data:
                                memory.seek(low)
                                memory.write(data.replace(b"genuine", b"forged!"))
                except (OSError, ValueError): pass
    """,
}
HONEST = "import json, time\ndef run(given):\n    time.sleep(0.3)\n    return given['args']['word']\n"


async def told(run: BenchRun) -> str:
    """What an honest script returns, or why it did not."""
    try:
        return str((await run.do({**script(run, HONEST), "args": {"word": "genuine"}})).value)
    except AgentEnvError as error:
        return error.message


@pytest.mark.parametrize("deed", DEEDS)
def test_f13_a_daemon_of_an_earlier_script_puts_no_result_in_the_place_of_a_later_ones(bench: Bench, deed: str) -> None:
    async def body(run: BenchRun) -> None:
        left = await run.do(script(run, DAEMON.replace("{deed}", DEEDS[deed].strip())))
        assert left.value == "left"
        genuine = 0
        for _ in range(6):
            said = await told(run)
            assert said == "genuine" or said.endswith("was changed in the place before it began")
            genuine += said == "genuine"
        assert genuine or deed in {"rewrites whatever was staged", "writes result files"}

    bench(body)
