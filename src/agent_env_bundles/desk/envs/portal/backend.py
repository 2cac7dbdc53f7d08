"""The website's backend: requests that come in, over plain HTTP, and the data plane that all environments have."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from agent_env_sdk.environment import DataPart, Environment, add_data, atomic, environment, get_data, read_json, reset_data
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route


@environment(name="portal")
class Portal(Environment):
    """Requests, in the order in which they came."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []

    def routes(self) -> Sequence[BaseRoute]:
        """What the website itself uses."""
        return [Route("/api/health", self.health), Route("/api/requests", self.requested, methods=["GET", "POST"])]

    async def health(self, _request: Request) -> JSONResponse:
        """It answers."""
        return JSONResponse({"ok": True})

    async def requested(self, request: Request) -> JSONResponse:
        """Lists requests, or takes one."""
        if request.method == "POST":
            self.requests.append({"text": str((await request.json())["text"])})
        return JSONResponse({"requests": self.requests})

    @reset_data
    def empty(self) -> None:
        """No requests."""
        self.requests.clear()

    @add_data
    def load(self, parts: list[Any]) -> None:
        """Takes {"requests": [{"text"}]}."""
        with atomic(self, "requests"):
            for part in parts:
                self.requests += [{"text": str(row["text"])} for row in read_json(part)["requests"]]

    @get_data
    def export(self) -> list[DataPart]:
        """Gives what `load` takes."""
        return [DataPart(data={"requests": self.requests})]


if __name__ == "__main__":
    Portal().serve(port=int(os.environ.get("PORT", "8000")))
