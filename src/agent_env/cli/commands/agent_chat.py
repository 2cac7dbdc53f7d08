"""`agent-env agent chat`: a live conversation with an agent, in the terminal or in a pipe."""

from __future__ import annotations

import asyncio
import base64
import json
import mimetypes
import os
import signal
import sys
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agent_env.cli.agents import Deployment, at_hand
from agent_env.cli.completing import AGENT_TARGETS, ENVS, MODELS, PROVIDERS
from agent_env.cli.frame import Command, FilePath, FiniteRange
from agent_env.cli.output import json_option, line, note, write_json
from agent_env.cli.session import opened_engine, run_async

if TYPE_CHECKING:
    from agent_env.agents import LiveAgent, Turn

_PROMPT = "> "
_HELP = "/new begins another conversation, /card shows its card, /quit ends (so does the end of input); Ctrl-C cancels a turn"
_PIECE = 64 * 1024


@click.command(cls=Command)
@click.argument("target", metavar="RUN[:AGENT]|URL|WHAT", shell_complete=AGENT_TARGETS)
@click.option("-m", "--message", "messages", multiple=True, help="What to say, instead of reading it from standard input (repeatable).")
@click.option("--attach", multiple=True, type=FilePath(exists=True, dir_okay=False), help="A file that goes with the first message.")
@click.option("--context-id", help="The conversation that is to go on; a new one when absent.")
@click.option("--model", shell_complete=MODELS, help="The model, where the agent lets it be chosen.")
@click.option("--system-prompt", help="For these turns, where the agent takes one.")
@click.option("--timeout-seconds", type=FiniteRange(min=0, min_open=True), default=600.0, show_default=True, help="Limit of one turn.")
@click.option(
    "--env", "environments", multiple=True, metavar="WHAT", shell_complete=ENVS, help="With WHAT: an environment that it uses (repeatable)."
)
@click.option("--sandbox", shell_complete=PROVIDERS, help="With WHAT: the provider of sandboxes, or a comma-separated chain.")
@json_option
def chat(*, target: str, messages: tuple[str, ...], attach: tuple[str, ...], context_id: str | None, as_json: bool, **options: Any) -> int:
    """Talk with an agent: of a run, at an address, or one that is deployed for this conversation and taken down after it.

    Lines of standard input are its messages; its answers go to standard output, and what it says meanwhile to standard error. With --json
    each turn is one line of JSON. Exit code 1 when the last turn did not complete.
    """
    config = {name: options[name] for name in ("model", "system_prompt") if options[name] is not None}
    deployment = Deployment(target, {}, options["environments"], options["sandbox"])

    async def work() -> int:
        async with opened_engine() as engine, at_hand(engine, target, deployment, "chat") as agent:
            talk = Talk(agent, options["timeout_seconds"], config, as_json=as_json)
            if context_id is not None:
                talk.context_id = context_id
            talk.attached = await asyncio.to_thread(lambda: [_attachment(Path(path)) for path in attach])
            return await talk.go(messages)

    return run_async(work)


@dataclass
class Talk:
    """A conversation."""

    agent: LiveAgent
    timeout_seconds: float
    config: dict[str, Any]
    as_json: bool
    context_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    attached: Sequence[dict[str, Any]] = ()
    completed: bool = True
    _turn: asyncio.Task[None] | None = None

    async def go(self, messages: Sequence[str]) -> int:
        """Says everything, and gives the exit code."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        terminal = sys.stdin.isatty() and not messages

        def interrupted() -> None:
            if self._turn is not None and not self._turn.done():
                self._turn.cancel()
            elif task is not None:
                task.cancel()

        if terminal:
            loop.add_signal_handler(signal.SIGINT, interrupted)
            card = await self.agent.card()
            note(f"{card.name}: {card.description}" if card.description else card.name)
            note(_HELP)
        async with aclosing(_given(messages) if messages else _lines(terminal=terminal)) as said:
            async for text in said:
                if not await self._one(text):
                    break
        return 0 if self.completed else 1

    async def _one(self, text: str) -> bool:
        """One line. False ends the conversation."""
        word = text.strip()
        if word == "/quit":
            return False
        if word == "/new":
            self.context_id = str(uuid.uuid4())
            note("another conversation")
        elif word == "/card":
            write_json((await self.agent.card(refresh=True)).to_json())
        elif word.startswith("/") and word.partition(" ")[0] in {"/help", "/?"}:
            note(_HELP)
        elif word:
            await self._say(text.rstrip("\n"))
        return True

    async def _say(self, text: str) -> None:
        self._turn = asyncio.ensure_future(self._follow(text))
        try:
            await self._turn
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                self._turn.cancel()
                await asyncio.wait([self._turn])
                raise
            self.completed = False
            note("cancelled")

    async def _follow(self, text: str) -> None:
        from agent_env.agents.contract import Ended, Outgoing, Progress

        parts = [{"kind": "text", "text": text}, *self.attached]
        self.attached = ()
        message = Outgoing(parts, str(uuid.uuid4()), self.context_id, config=self.config, timeout_seconds=self.timeout_seconds)
        async with aclosing(self.agent.prompt(message)) as updates:
            async for update in updates:
                match update:
                    case Progress(text=said) if not self.as_json:
                        note(said.rstrip())
                    case Ended(turn=turn):
                        self._show(turn)

    def _show(self, turn: Turn) -> None:
        from agent_env.agents.endings import hint_of

        self.completed = turn.end in {"completed", "input_required"}
        self.context_id = turn.context_id or self.context_id
        if self.as_json:
            line(json.dumps(_facts(turn), ensure_ascii=False))
            return
        why = turn.error_message or turn.error_code or "without a word"
        if turn.text and (self.completed or turn.text != why):  # what only says why is no answer
            line(turn.text)
        for part in turn.parts:
            if part.get("kind") == "file":
                file = part.get("file") or {}
                note(f"[{file.get('name') or 'a file'}, {file.get('mimeType') or 'of unknown type'}]")
        if not self.completed:
            note(f"{turn.end}: {why}")
            hint = hint_of(turn)
            if hint is not None:
                note(f"hint: {hint}")


def _facts(turn: Turn) -> dict[str, Any]:
    return {
        "state": str(turn.end),
        "text": turn.text,
        "parts": [dict(part) for part in turn.parts],
        "context_id": turn.context_id,
        "task_id": turn.task_id,
        "error_type": turn.error_type,
        "error_code": turn.error_code,
        "error_message": turn.error_message,
        "usage": turn.usage.to_json() if turn.usage is not None else None,
    }


async def _given(messages: Sequence[str]) -> AsyncGenerator[str, None]:
    for message in messages:
        yield message


async def _lines(*, terminal: bool) -> AsyncGenerator[str, None]:
    """Lines of standard input as they come. A terminal's are waited for without a thread, which no signal could end."""
    if not terminal:
        while text := await asyncio.to_thread(sys.stdin.readline):
            yield text
        return
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    rest = b""
    while True:
        ready = asyncio.Event()
        sys.stderr.write(_PROMPT)
        sys.stderr.flush()
        loop.add_reader(descriptor, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(descriptor)
        piece = os.read(descriptor, _PIECE)
        if not piece:
            return
        *whole, rest = (rest + piece).split(b"\n")
        for each in whole:
            yield each.decode(errors="replace")


def _attachment(path: Path) -> dict[str, Any]:
    media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    content = base64.b64encode(path.read_bytes()).decode()
    return {"kind": "file", "file": {"bytes": content, "name": path.name, "mimeType": media_type}}
