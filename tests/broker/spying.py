"""A step type that gives a place what an agent is given, and then looks for the key with everything that the place has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from agent_env import keeper
from agent_env.broker import MODELS_PORT
from agent_env.documents.updates import AppendRecord, SetMetadata
from agent_env.places import Command
from agent_env.steps.contract import SandboxRequest, Step, StepResult

LOOK = r"""
echo "--- variables"; env; cat /proc/[0-9]*/environ 2>/dev/null | tr '\0' '\n'
echo "--- processes"; cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' '; ps 2>/dev/null
echo "--- files"; first="$1"; second="$2"; for each in /*; do
  case "$each" in /dev|/proc|/sys|/usr|/opt|/lib*|/bin|/sbin) ;; *) grep -rl "$first$second" "$each" 2>/dev/null ;; esac
done
echo "--- end"
"""
"""The key comes in two halves, so that the search itself does not show it. What the machine's own packages hold is nobody's key."""
TO_BUSYBOX = """wget -q -S -O- --header "Authorization: Bearer $LITELLM_API_KEY" --header 'Content-Type: application/json' \
--post-data "$2" "$LITELLM_BASE_URL$1" 2>&1"""
TO_PYTHON = """python3 - "$@" <<'END'
import os, sys, time, urllib.request, urllib.error
begun = time.monotonic()
headers = {"authorization": "Bearer " + os.environ["LITELLM_API_KEY"], "content-type": "application/json"}
asked = urllib.request.Request(os.environ["LITELLM_BASE_URL"] + sys.argv[1], sys.argv[2].encode() or None, headers)
answer = None
while answer is None:
    try:
        answer = urllib.request.urlopen(asked, timeout=60)
    except urllib.error.HTTPError as error:
        answer = error
    except urllib.error.URLError as error:  # where the loopback is the machine's own, nobody listens while a keeper is being replaced
        if not isinstance(error.reason, ConnectionRefusedError) or time.monotonic() > begun + 30:
            raise
        time.sleep(0.1)
print("HTTP/1.1", answer.status)
print(answer.read().decode())
END"""
ADDRESSES = ("/", "/key/info", "/v1/models", "/config", "/debug", "/health", "/metrics", "/v1/files", "/environ")


@dataclass(frozen=True, slots=True)
class Seen(StepResult):
    record: dict[str, Any]
    said: dict[str, Any]
    step_id: str

    def updates(self):
        return AppendRecord("deployed_sandboxes", self.record), SetMetadata(("seen", self.step_id), self.said)


class Spy(Step, type="t_spy"):
    """Asks models from a place, and prints whatever the place can see."""

    mode: str = "vm"
    image: str | None = None
    halves: tuple[str, str] = ("", "")
    calls: tuple[str, ...] = ()
    """Bodies of chat requests."""
    judge: bool = False
    between: ClassVar[Callable[[], Awaitable[None]] | None] = None
    """Done after each call."""

    async def execute(self, run):
        request = SandboxRequest(self.id, self.mode, provider="local", image=self.image)
        record = await run.deploy_sandbox(request)
        held = await run._shared.sandboxes.hold(record.sandbox_id)
        # A machine whose places have no network of their own, as one without slirp4netns: their loopback is this machine's.
        shared = self.mode == "vm" and not (await held.provider.capabilities()).own_network
        access = await run.models.access("spy", shared_loopback=shared)
        await held.sandbox.lead_to_host({MODELS_PORT: keeper.MODELS})
        place = await (held.sandbox.machine() if self.mode == "vm" else held.sandbox.container(record.container_id))
        ask = TO_PYTHON if self.mode == "vm" else TO_BUSYBOX
        variables = access.variables()

        async def sh(script: str, *words: str) -> str:
            done = await place.run(Command(["sh", "-c", script, "sh", *words], env=variables, attempt=run.attempt_id))
            return (done.stdout + done.stderr).decode(errors="replace")

        await run.models.begin_turn("spy", "turn-1")
        answers = []
        for body in self.calls:
            answers.append(await sh(ask, "/v1/chat/completions", body))
            if self.between is not None:
                await self.between()
        seen = [await sh(LOOK, *self.halves), *[await sh(ask, path, "") for path in ADDRESSES]]
        judged = await run.models.chat([{"role": "user", "content": "judge"}], role="judge", holder=self.id) if self.judge else None
        usage = await run.models.usage(holder="spy", turn="turn-1")
        said = {
            "answers": answers,
            "seen": seen,
            "token": access.token,
            "judged": judged.text if judged else None,
            "requests": usage.requests,
            "problem": usage.problem,
            "place": (await sh("cat /proc/1/comm")).strip(),
        }
        return Seen(record.to_json(), said, self.id)


class Crash(Step, type="t_crash"):
    """Asks a model whose error shows the key, and fails with what it heard."""

    async def execute(self, run):
        await run.models.chat([{"role": "user", "content": "x"}], role="judge", holder=self.id)
