"""A program in place of a coding agent: speaks codex's events, and does what its prompt says."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

session, prompt = sys.argv[1], sys.stdin.read()
word, _, rest = prompt.partition(" ")
memory = Path.home() / "memory"


def tell(kind: str, **more: object) -> None:
    print(json.dumps({"type": kind, **more}), flush=True)


def sleeper(own_group: bool) -> None:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", rest], start_new_session=own_group)


tell("thread.started", thread_id=session or "thread-1")
tell("turn.started")
print("a word to people", flush=True)
answer = f"done: {prompt}"
match word:
    case "home":
        answer = str(Path.home())
    case "session":
        answer += f" {session}"
    case "print":
        answer = f"the key is {os.environ['PROGRAM_KEY']}"
    case "fail":
        message = f"refused: {os.environ['PROGRAM_KEY']}" if rest == "with the key" else "the model is away"
        tell("turn.failed", error={"message": message})
        sys.exit(1)
    case "exit":
        print("its last words", file=sys.stderr)
        sys.exit(int(rest))
    case "children":
        sleeper(own_group=False)
        sleeper(own_group=True)
        time.sleep(600)
    case "hang":
        tell("item.completed", item={"id": "i0", "type": "agent_message", "text": "I begin"})
        time.sleep(600)
    case "leave":
        sleeper(own_group=True)
    case "remember":
        memory.write_text(prompt)
    case "recall":
        answer += f" {memory.read_text()}"
    case "calls":
        for number in range(3):  # the second and the third at once
            call = {"id": f"c{number}", "type": "command_execution", "command": f"touch {number}"}
            tell("item.started", item={**call, "status": "in_progress"})
            Path(str(number)).touch()
            if number != 1:
                for each in (0,) if number == 0 else (2, 1):
                    tell("item.completed", item={**call, "id": f"c{each}", "exit_code": 0, "status": "completed"})
                while not Path(f"heard-{number}").exists():
                    time.sleep(0.01)
    case "json":
        answer = '{"n": 1}' if rest == "plain" else 'Here:\n```json\n{"n": 1}\n```'
    case "work":
        call = {"id": "i1", "type": "command_execution", "command": "true"}
        tell("item.started", item={**call, "status": "in_progress"})
        tell("item.completed", item={**call, "aggregated_output": "", "exit_code": 0, "status": "completed"})
tell("item.completed", item={"id": "i2", "type": "agent_message", "text": answer})
if word == "work":
    tell("unheard.of", kept=True)
tell("turn.completed", usage={"input_tokens": 7, "output_tokens": 3})
