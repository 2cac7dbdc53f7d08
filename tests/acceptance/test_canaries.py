"""Canaries from `secret set` to `gc`: pushed to and pulled from a registry that really asks, told to long commands, at DEBUG."""

from __future__ import annotations

import base64
import json
import secrets
import time
import warnings
from pathlib import Path

import pytest

from agent_env.containers import EngineEndpoint
from tests.acceptance.boxes import box_image
from tests.acceptance.conftest import Home
from tests.acceptance.containers import asked, in_engine
from tests.acceptance.test_container_secrets import deploy, everything, forgotten, look, spellings
from tests.acceptance.test_secrets_and_host import watched_arguments
from tests.images.laboratory import debian_registry

__all__ = ["box_image"]

PASSWORD, STORED = "canary-of-htpasswd-8c41", "canary-of-the-store-2f60"
ENVIRONMENT, LITERAL = "canary-of-environment-93aa", "canary-of-the-task-d07c"


def hashed(password: str) -> str:
    """As `htpasswd -B` writes it, which is the one kind that the registry takes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            import crypt
        except ImportError:
            pytest.skip("agentenv-capability-missing: bcrypt")
        return crypt.crypt(password, crypt.mksalt(crypt.METHOD_BLOWFISH))


@pytest.mark.timeout(400)
def test_se03_canaries_of_a_guarded_registry_and_of_the_store_are_seen_by_nobody_else(
    home: Home, docker: EngineEndpoint, box_image: str, tmp_path: Path
) -> None:
    passwords, storage, begun = tmp_path / "htpasswd", tmp_path / "registry", int(time.time())
    storage.mkdir()
    passwords.write_text(f"me:{hashed(PASSWORD)}\n")
    home.env |= {"AGENT_ENV_LIMIT_KEEPER_IDLE_SECONDS": "0.2", "AGENT_ENV_DEBUG": "1"}
    with debian_registry(storage, passwords) as registry, watched_arguments() as arguments:
        name, told = f"{registry}/agentenv-test/c{secrets.token_hex(5)}:1", []
        config = home.home / ".docker/config.json"
        config.parent.mkdir()
        config.write_text(json.dumps({"auths": {registry: {"auth": base64.b64encode(f"me:{PASSWORD}".encode()).decode()}}}))
        home.write("ctx/Dockerfile", f"FROM {box_image}\nRUN echo {secrets.token_hex(4)} > /made\n")
        commands = [("image", "build", "ctx", "-t", name), ("image", "push", name), ("image", "gc", "--all")]
        told.append(home("secret", "set", "task-key", stdin=STORED.encode()).all)
        for command in commands:
            answer = home("--debug", *command)
            assert answer.code == 0, answer.all
            told.append(answer.all)
        right = 'test "$STORED" = canary-of-the-store-"2f60" && test "${API_KEY%-d07c}" = canary-of-the-task && test -s /made'
        box = deploy("box", name)
        box["env_vars"]["STORED"] = "secret:task-key"
        long = "for i in 1 2 3 4 5 6 7 8; do env > /dev/null; sleep 0.2; done; env; env >&2"
        steps = [box, look("box", right, long, "env; exit 3")]
        absent = [deploy("gone", f"{registry}/agentenv-test/absent:1")]
        ran = home("--debug", "run", home.bundle(a=steps, b=absent), "--json", "--keep", "--output", "out", env={"CANARY": ENVIRONMENT})
        runs = [run["run_id"] for run in ran.json["runs"]]
        (kept,) = [run["run_id"] for run in ran.json["runs"] if run["task"] == "tasks/a.json"]
        told += [ran.all, *(home("--debug", "runs", "logs", run_id).all for run_id in runs)]
        told += [home("--debug", "exec", kept, "--", "env", env={"CANARY": ENVIRONMENT}).all, home("secret", "list").all]
        told += [home("--debug", "image", "pull", f"{name}-no").all]
        inspected = asked(docker, lambda engine: everything(engine, home, name, begun))
    try:
        scored = home.context(kept)["metadata"]["verifications"]["look-box"]["results"]
        assert [row["result"] for row in scored] == [True, True, False], scored
        assert any("Traceback" in text for text in told), "no crash was seen"
        files = [path for root in (home.state, home.places, home.cwd) for path in root.rglob("*") if path.is_file()]
        known = {home.state / "secrets.json"}
        for canary in (PASSWORD, STORED, ENVIRONMENT, LITERAL):
            for spelling in spellings(canary):
                text = spelling.decode()
                assert not [each[:300] for each in told if text in each], canary
                assert not [each[:300] for each in inspected if text in each], canary
                written = {home.cwd / "b/tasks/a.json", home.cwd / "b/tasks/b.json"} if canary == LITERAL else set()
                assert not [path for path in files if path not in known | written and spelling in path.read_bytes()], canary
                assert not [each for each in arguments if spelling in each], canary
    finally:
        assert home("gc", "--kept").code == 0
        assert not in_engine(docker, home)
        asked(docker, lambda engine: forgotten(engine, name))
