"""What containers are told in confidence is seen by their own programs and by nobody else, whatever goes wrong and however much is told."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

from agent_env.containers import Engine, EngineEndpoint, labelled, objects
from agent_env.stores.installation import home_of
from tests.acceptance.conftest import Home
from tests.acceptance.containers import asked, in_engine
from tests.acceptance.test_secrets_and_host import watched_arguments
from tests.container_engine import archive_of, busybox_root
from tests.images.laboratory import debian_registry, door, publish

PASSWORD, ENVIRONMENT, LITERAL = "canary-of-registry-5b1e", "canary-of-environment-93aa", "canary-of-the-task-d07c"
BASH = b'#!/bin/sh\nexec /bin/sh "$@"\n'
CANARIES = (PASSWORD, ENVIRONMENT, LITERAL)


def spellings(canary: str) -> list[bytes]:
    """As it is, in the engine's registry header, and in a registry's own."""
    header = base64.b64encode(f"me:{canary}".encode())
    return [canary.encode(), header.rstrip(b"="), base64.b64encode(canary.encode()).rstrip(b"=")]


def deploy(name: str, image: str, **fields: Any) -> dict[str, Any]:
    variables = {"FROM_ENVIRONMENT": "env:CANARY", "API_KEY": LITERAL, "PLAIN": "may be seen"}
    mode = {"sandbox_mode": "container", "image": image, "port": 8000, "env_vars": variables}
    return {"id": name, "type": "deploy_sandbox", "sandbox_name": name, **mode, **fields}


def look(name: str, *commands: str) -> dict[str, Any]:
    criteria = [{"type": "bash_cmd_succeeds", "criterion": command, "bash_cmd": command} for command in commands]
    return {"id": f"look-{name}", "type": "verify_sandbox", "sandbox_name": name, "base_dir": "/", "criteria": criteria}


def test_se03_canaries_of_containers_are_seen_by_nobody_else(home: Home, docker: EngineEndpoint, tmp_path: Path) -> None:
    """Environment, registry password and a task's literal secret, at DEBUG, with a failing command, a dead command and a lost container."""
    storage = tmp_path / "registry"
    storage.mkdir()
    begun = int(time.time())
    home.env["AGENT_ENV_LIMIT_KEEPER_IDLE_SECONDS"] = "0.2"
    with debian_registry(storage) as registry, door(registry, user="me", password=PASSWORD) as gate, watched_arguments() as arguments:
        image = publish(
            registry,
            [archive_of({**busybox_root(), "bin/bash": BASH}, modes={"tmp": 0o1777})],
            Cmd=["sleep", "100000"],
            Volumes={"/data": {}},
        )
        named = image.name.replace(registry, gate.address)
        config = home.home / ".docker/config.json"
        config.parent.mkdir()
        config.write_text(json.dumps({"auths": {gate.address: {"auth": base64.b64encode(f"me:{PASSWORD}".encode()).decode()}}}))
        policy = {"mode": "allowlist", "allow_hosts": ["example.com"]}
        told_right = 'test "${FROM_ENVIRONMENT%-93aa}" = canary-of-environment && test "${API_KEY%-d07c}" = canary-of-the-task'
        steps = [deploy("box", named), deploy("walled", named, network_policy=policy, depends_on=["box"])]
        steps += [look("box", told_right, "env; exit 3"), look("walled", "env >&2; kill -9 $$")]
        broken = [deploy("box", named), look("box", "env"), deploy("other", gate.address + "/agentenv-test/absent:1")]
        folder = home.bundle(a=steps, b=broken)
        answer = home("--debug", "run", folder, "--json", "--keep", "--output", "out", env={"CANARY": ENVIRONMENT, "AGENT_ENV_DEBUG": "1"})
        by_task = {run["task"]: run["run_id"] for run in answer.json["runs"]}
        runs = [by_task["tasks/a.json"], by_task["tasks/b.json"]]
        told = [answer.all, *(home("--debug", "runs", verb, run_id).all for run_id in runs for verb in ("logs", "show"))]
        told += [home("doctor").all, home("config", "show").all, json.dumps([home.context(run_id) for run_id in runs])]
        inspected = asked(docker, lambda engine: everything(engine, home, named, begun))
    try:
        assert len(gate.authorizations) > 1, answer.all
        assert "verifications" in home.context(runs[0])["metadata"], answer.all
        scored = home.context(runs[0])["metadata"]["verifications"]["look-box"]["results"]
        assert scored[0]["result"] is True, scored
        assert len([text for text in inspected if "may be seen" in text]) >= 3, "what was looked at is not what was made"
        kept = [path for root in (home.state, home.places, home.cwd / "out") for path in root.rglob("*") if path.is_file()]
        assert len(kept) > 5
        known = {home.state / "secrets.json"}  # the one file that is there for them, 0600
        for canary in CANARIES:
            for spelling in spellings(canary):
                text = spelling.decode()
                assert not [each[:300] for each in told if text in each]
                assert not [each[:300] for each in inspected if text in each]
                assert not [path for path in kept if path not in known and spelling in path.read_bytes()]
                assert not [each for each in arguments if spelling in each]
    finally:
        assert home("gc", "--kept").code == 0
        assert not in_engine(docker, home)
        asked(docker, lambda engine: forgotten(engine, named))


async def everything(engine: Engine, home: Home, image: str, since: int) -> list[str]:
    """All that an engine tells about what is the installation's: objects, logs, the image, its history, and the events."""
    found: list[Any] = []
    for each in await labelled(engine, {"agentenv.home": home_of(home.state)}):
        if each.kind == "container":
            found.append(await objects.inspect(engine, each.id))
            async with engine.asking("reading logs") as client:
                found.append(await client.containers.container(each.id).log(stdout=True, stderr=True))
                found.append(await client._query_json(f"containers/{each.id}/top"))
        else:
            async with engine.asking("looking") as client:
                found.append(await client._query_json(f"{each.kind}s/{each.id}"))
    async with engine.asking("looking at the image") as client:
        found += [await client.images.inspect(image), await client.images.history(image), await client.images.list()]
        async with client._query("events", params={"since": str(since), "until": str(int(time.time()))}) as response:
            found.append(await response.text())
    return [json.dumps(each) for each in found]


async def forgotten(engine: Engine, image: str) -> None:
    async with engine.asking("removing the image") as client:
        await client.images.delete(image, force=True)
