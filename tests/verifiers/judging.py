"""Judges from a script: a model server that reads what a judge is shown, and says what a function says of each criterion."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from agent_env_sdk.testing.models import ModelServer, Scenario, Step, serve_models

from agent_env.broker.contract import ChatAnswer, Usage
from agent_env.errors import ModelUnavailableError
from tests.steps.bench import BenchRun, bench

Opinion = Callable[[Mapping[str, Any], Mapping[str, Any]], float]
"""Of a document and one of its criteria: the score."""
PROMPT = "p"


@dataclass(frozen=True)
class Says:
    """A judge that answers a document with this object."""

    answer: Callable[[Mapping[str, Any]], Mapping[str, Any]]


def honest(document: Mapping[str, Any], criterion: Mapping[str, Any]) -> float:
    """A criterion holds where its title's last word is in the answer; the case's number is looked at as it should be."""
    words = criterion["title"].rstrip(".").split()
    if criterion["title"].startswith("The case number of this document is"):
        return float(words[-1] == str(document["case_number"]))
    return float(words[-1] in document["evidence"]["answer"])


def gullible(document: Mapping[str, Any], criterion: Mapping[str, Any]) -> float:
    """Honest, until something it is shown tells it that all is well."""
    text = json.dumps(document["evidence"]).casefold()
    return 1.0 if "full marks" in text or "all is well" in text else honest(document, criterion)


def shown_to(messages: Sequence[Mapping[str, Any]]) -> Any:
    """The document that a judge was shown, with pictures or without."""
    content = messages[1]["content"]
    return json.loads(content if isinstance(content, str) else content[0]["text"])


def answering(server: ModelServer, opinion: Opinion | Says) -> Callable[[str], str]:
    """The judge's answer to what it was shown at first, whatever was said since."""

    def answer(_: str) -> str:
        if isinstance(opinion, Says):
            return json.dumps(opinion.answer(shown_to(server.requests[-1]["body"]["messages"])))
        document = shown_to(server.requests[-1]["body"]["messages"])
        results = []
        for number, criterion in enumerate(document["criteria"]):
            said = opinion(document, criterion)
            results.append({"id": criterion["id"], "justification": f"{number}: {criterion['title']} → {said}", "score": said})
        return "Here it is:\n" + json.dumps({"results": results})

    return answer


@dataclass
class WiredModels:
    """The run's models, asked over HTTP without a broker in between."""

    server: ModelServer
    key: str
    http: httpx.AsyncClient
    asked: list[dict[str, Any]] = field(default_factory=list)

    async def chat(self, messages: Sequence[Mapping[str, Any]], *, role: str, holder: str, **more: Any) -> ChatAnswer:
        body = {"model": more.get("model") or "judge-model", "messages": list(messages), "response_format": more.get("response_format")}
        self.asked.append({"role": role, "holder": holder, **body, **(more.get("params") or {})})
        headers = {"authorization": f"Bearer {self.key}"}
        answer = await self.http.post(f"{self.server.base}/v1/chat/completions", json=body, headers=headers)
        if not answer.is_success:
            raise ModelUnavailableError(f"the model answered {answer.status_code}")
        said = answer.json()
        message, usage = said["choices"][0]["message"], said["usage"]
        used = Usage(1, usage["prompt_tokens"], usage["completion_tokens"], cost_usd=0.25)
        return ChatAnswer(message["content"], message, said["model"], "stop", used)


@asynccontextmanager
async def judged_by(folder: Path, *opinions: Opinion | Says | str) -> AsyncIterator[BenchRun]:
    """A run whose judge has these opinions, one for each attempt at an answer; a text is what it says instead."""
    async with serve_models({}) as server, httpx.AsyncClient() as http, bench(folder, deployed=False) as run:
        said = [each if isinstance(each, str) else answering(server, each) for each in opinions]
        server.scenarios["judge"] = Scenario(tuple(Step(each, input_tokens=100, output_tokens=20) for each in said))
        run.models = WiredModels(server, server.key("judge"), http)
        yield run
