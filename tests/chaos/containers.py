"""Chaos on containers: the task, what is like ours and is not, and what must be left of either in the end."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from agent_env.containers import ContainerSpec, Engine, EngineEndpoint, deploy, labelled, objects, open_engine, remove_all
from agent_env.containers.networks import own_network
from agent_env.errors import NotFoundError
from agent_env.places import Deed, Missing, Upload
from agent_env.steps.contract import Run, Step
from agent_env.steps.targets import SandboxTarget
from agent_env.stores.installation import home_of
from tests.chaos.steps import Made
from tests.container_engine import archive_of, busybox_root, ensure

IMAGE = "agentenv-test/chaos:1"
FILES = 120
LARGE = 3 << 20
COPIED = {"files": FILES + 1, "same": True}
SANDBOX_ID = "local-decoy0000"
"""Begins as the ids of sandboxes do."""


def image(endpoint: EngineEndpoint) -> str:
    """An image whose command stays, and that has a volume of its own."""
    files = {**busybox_root(), "app": None, "data": None}
    return ensure(endpoint, IMAGE, lambda: archive_of(files, modes={"tmp": 0o1777}), ['CMD ["sleep","100000"]', "VOLUME /data"])


def box(first: bool) -> dict[str, Any]:
    """The deploy step's fields: one run has the keeper hold its network, the other is on the shared network."""
    policy = {"network_policy": {"mode": "allowlist", "allow_hosts": ["example.com"]}} if first else {}
    return {"sandbox_mode": "container", "image": IMAGE, "port": 8000, "memory_mb": 256, **policy}


class Copy(Step, type="c_copy"):
    """Repeats: copies many small files and a large one into the container and back, and compares."""

    async def execute(self, run: Run) -> Made:
        place = await run.place(SandboxTarget("box"), Deed.LOAD)
        contents = {PurePosixPath(f"/data/copy/{number}.txt"): f"{number}\n".encode() * (1 + number) for number in range(FILES)}
        contents[PurePosixPath("/data/copy/large")] = b"%032d" % 7 * (LARGE // 32)
        await place.remove([PurePosixPath("/data/copy")])
        await place.put([Upload(path, content) for path, content in contents.items()])
        into = run.scratch() / "copy"
        into.mkdir(parents=True)
        back = await place.get([*contents], into)
        same = all(digest_of(back[path]) == hashlib.sha256(content).hexdigest() for path, content in contents.items())
        return Made(self.id, {"files": len(back), "same": same})


def digest_of(path: Path | Missing) -> str:
    return path.reason if isinstance(path, Missing) else hashlib.sha256(path.read_bytes()).hexdigest()


# what is like ours and is not


async def plant(root: Path, runs: tuple[str, ...]) -> dict[str, Any]:
    """Containers, a network, volumes, an image and folders that look like ours: names, files, the labels of a run, another's home.

    Returns:
        Where they are and how they look, for `trampled`.
    """
    home = f"decoy-{secrets.token_hex(6)}"
    labels = {"agentenv.home": home, "agentenv.run": runs[0], "agentenv.sandbox": SANDBOX_ID}
    name = f"agent-{SANDBOX_ID}-{home}"
    async with open_engine() as engine:
        network = await own_network(engine, f"agentenv-{home}", {**labels, "agentenv.network": "shared"})
        spec = ContainerSpec(name=name, image=IMAGE, labels=labels, token=secrets.token_hex(16), role="agent", network=network.id)
        place = await deploy(engine, spec)
        await place.put([Upload(PurePosixPath("/app/made.txt"), b"decoy"), Upload(PurePosixPath("/data/copy/0.txt"), b"decoy")])
        await place.aclose()
        tag = f"agentenv-test/chaos-{home}"
        async with engine.asking("tagging") as docker:
            await docker._query_json(f"images/{IMAGE}/tag", method="POST", params={"repo": tag, "tag": "1"})
            bare = {"Image": IMAGE, "Cmd": ["sleep", "100000"], "HostConfig": {"NetworkMode": "none", "Mounts": [_volume(f"{name}-bare")]}}
            unlabelled = await docker.containers.create(bare, name=f"{name}-bare")
            await unlabelled.start()
    folders(root, home, name)
    about = {"home": home, "ids": [place.id, unlabelled.id], "network": network.id, "image": f"{tag}:1", "volume": f"{name}-bare"}
    return {**about, "looks": await looks(root, about)}


def _volume(name: str) -> dict[str, object]:
    return {"Type": "volume", "Source": name, "Target": "/data"}


def folders(root: Path, home: str, name: str) -> None:
    """Work folders beside ours: another installation's, and one that only has a marker which names a foreign container."""
    for number, labels in enumerate(({"agentenv.home": home, "agentenv.sandbox": SANDBOX_ID}, None)):
        folder = root / "sandboxes" / f"agent-env-{SANDBOX_ID}{number}-{number:08x}"
        (folder / ".agentenv").mkdir(parents=True)
        (folder / ".agent-container-mode").write_text(name)
        (folder / "made.txt").write_text("decoy")
        if labels is not None:
            (folder / ".agentenv/sandbox.json").write_text(json.dumps({"sandbox_id": f"{SANDBOX_ID}{number}", "labels": labels}))


async def looks(root: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """All that would show that somebody touched them."""
    async with open_engine() as engine:
        found: dict[str, Any] = {}
        for container_id in about["ids"]:
            found[container_id] = await _container(engine, container_id)
        found["network"] = await _or_gone(engine, f"networks/{about['network']}", "Id", "Created", "Labels")
        found["image"] = await _or_gone(engine, f"images/{about['image']}/json", "Id")
        found["volume"] = await _or_gone(engine, f"volumes/{about['volume']}", "Name", "CreatedAt")
        found["labelled"] = sorted(each.id for each in await labelled(engine, {"agentenv.home": about["home"]}))
    files = sorted((root / "sandboxes").glob(f"agent-env-{SANDBOX_ID}*/**/*"))
    found["folders"] = {str(path.relative_to(root)): path.read_text() if path.is_file() else "" for path in files}
    return found


async def _container(engine: Engine, container_id: str) -> Any:
    """Its state, and every file that was written or removed in it."""
    try:
        said = await objects.inspect(engine, container_id)
        async with engine.asking("looking for changes") as docker:
            changes = await docker._query_json(f"containers/{container_id}/changes")
    except NotFoundError:
        return "gone"
    state = said["State"]
    return [said["Name"], state["Status"], state["Pid"], state["StartedAt"], sorted(each["Path"] for each in changes or [])]


async def _or_gone(engine: Engine, path: str, *fields: str) -> Any:
    try:
        async with engine.asking("looking") as docker:
            found = await docker._query_json(path)
    except NotFoundError:
        return "gone"
    return [found.get(field) for field in fields]


async def trampled(root: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """What of the foreign things is not as it was; then removes them, and whatever a case that went wrong has left."""
    now, then = json.loads(json.dumps(await looks(root, about))), about["looks"]
    wrong = [f"foreign {key}: {now[key]!r} instead of {then[key]!r}" for key in then if now.get(key) != then[key]]
    async with open_engine() as engine:
        await remove_all(engine, {"agentenv.home": home_of(root / "state")})
        for container_id in about["ids"]:
            await objects.remove_container(engine, container_id)
        removed = await remove_all(engine, {"agentenv.home": about["home"]})
        wrong += [f"foreign {which} can't be removed: {why}" for which, why in removed.left.items()]
        await objects.remove(engine, objects.Listed("volume", about["volume"], about["volume"]))
        async with engine.asking("removing a tag") as docker:
            await docker.images.delete(about["image"])
    return {"wrong": wrong}


async def left_over(root: Path) -> list[str]:
    """What the engine still has of the installation."""
    async with open_engine() as engine:
        return sorted(each.name for each in await labelled(engine, {"agentenv.home": home_of(root / "state")}))
