"""Drives an agent with the official A2A client of whichever generation is installed, through every operation that the client has, and
prints what it saw as JSON.

Usage: official_a2a.py URL [TOKEN]
"""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from importlib.metadata import version
from typing import Any

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory

FIRST = version("a2a-sdk").startswith("0.")


def message(text: str) -> Any:
    """A user's message, as the generation has it."""
    if FIRST:
        from a2a.types import Message, Part, Role, TextPart

        return Message(message_id=uuid.uuid4().hex, role=Role.user, parts=[Part(root=TextPart(text=text))], context_id="c")
    from a2a.types import Message, Part, Role, SendMessageRequest

    return SendMessageRequest(message=Message(message_id=uuid.uuid4().hex, role=Role.ROLE_USER, parts=[Part(text=text)], context_id="c"))


def plain(value: Any) -> Any:
    """A value as the wire has it."""
    if FIRST:
        items = value if isinstance(value, tuple) else (value,)
        return [item.model_dump(mode="json", by_alias=True, exclude_none=True) for item in items if item is not None]
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(value)


async def said(client: Any, text: str) -> list[Any]:
    """Every update that a message brings."""
    return [plain(update) async for update in client.send_message(message(text))]


def of_task(task_id: str, first: str, second: str) -> Any:
    """A request that names a task, by its name in each generation."""
    import a2a.types

    return getattr(a2a.types, first if FIRST else second)(id=task_id)


async def followed(client: Any, task_id: str) -> list[Any]:
    """A task that runs, taken up again by another client, up to its end."""
    if FIRST:
        return [plain(update) async for update in client.resubscribe(of_task(task_id, "TaskIdParams", ""))]
    return [plain(update) async for update in client.subscribe(of_task(task_id, "", "SubscribeToTaskRequest"))]


async def listed(client: Any) -> dict[str, Any]:
    """What the second generation can ask beside: the agent's tasks, in pages."""
    from a2a.types import ListTasksRequest, TaskState

    whole = plain(await client.list_tasks(ListTasksRequest(context_id="c", history_length=1)))
    failed = plain(await client.list_tasks(ListTasksRequest(status=TaskState.TASK_STATE_FAILED)))
    pages, token = [], ""
    while len(pages) < 10:
        page = plain(await client.list_tasks(ListTasksRequest(context_id="c", page_size=2, page_token=token)))
        pages.append([task["id"] for task in page.get("tasks", [])])
        token = page.get("nextPageToken", "")
        if not token:
            break
    return {"whole": whole, "failed": failed, "pages": pages}


async def refused(call: Any) -> str:
    """Which of the client's errors a call ends in."""
    try:
        await call
    except Exception as error:  # noqa: BLE001 - which one it is, is what is looked for
        return type(error).__name__
    return "nothing"


async def main(url: str, token: str | None) -> None:
    """Asks, streams, reads back, takes up again and cancels."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with httpx.AsyncClient(headers=headers, timeout=60) as http, httpx.AsyncClient(timeout=60) as stranger:
        card = await A2ACardResolver(http, url).get_agent_card()
        streaming = ClientFactory(ClientConfig(httpx_client=http, streaming=True)).create(card)
        waiting = ClientFactory(ClientConfig(httpx_client=http, streaming=False)).create(card)
        polling = ClientFactory(ClientConfig(httpx_client=http, streaming=False, polling=True)).create(card)
        seen: dict[str, Any] = {
            "streamed": await said(streaming, "hello"),
            "waited": await said(waiting, "hello"),
            "failed": await said(waiting, "fail no"),
            "rejected": await said(waiting, "reject"),
        }
        [started] = await said(polling, "wait forever")
        task_id = started[0]["id"] if FIRST else started["task"]["id"]
        get, cancel = of_task(task_id, "TaskQueryParams", "GetTaskRequest"), of_task(task_id, "TaskIdParams", "CancelTaskRequest")
        seen["read"] = plain(await polling.get_task(get))
        following = asyncio.create_task(followed(streaming, task_id))
        await asyncio.sleep(0)
        seen["cancelled"] = plain(await polling.cancel_task(cancel))
        seen["followed"] = await asyncio.wait_for(following, 60)
        if not FIRST:
            seen["listed"] = await listed(polling)
        unknown = of_task("none", "TaskQueryParams", "GetTaskRequest")
        keyless = ClientFactory(ClientConfig(httpx_client=stranger, streaming=False)).create(card)
        seen["refused"] = {
            "cancelled twice": await refused(polling.cancel_task(cancel)),
            "unknown": await refused(polling.get_task(unknown)),
            "without the token": await refused(keyless.get_task(get)),
        }
    print(json.dumps(seen))  # noqa: T201 - this is the answer


asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None))
