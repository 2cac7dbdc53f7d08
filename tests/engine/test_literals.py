"""Literal secrets of tasks: the document and every record keep a reference, the step gets the value, and nobody else sees it."""

from __future__ import annotations

import json

import pytest

from agent_env.engine import RunOptions
from agent_env.engine.literals import references_in, without_literals
from tests.engine.parts import planned, run
from tests.engine.test_teardown import Toy, Toys

CANARY = "canary-9f8e7d6c5b4a3210"
TOKEN = "ghp_0123456789abcdefghijABCDEFGHIJ"
BOX = {
    "id": "box",
    "type": "deploy_sandbox",
    "sandbox_name": "box",
    "sandbox_mode": "container",
    "image": "image",
    "port": 80,
    "sandbox_type": "toy",
    "env_vars": {
        "API_KEY": CANARY,
        "LOG_LEVEL": "debug",
        "OTHER": TOKEN,
        "DB_PASSWORD": f"env:NO_SUCH?{CANARY}",
        "SECRET_REF": "env:NO_SUCH?",
    },
}


class Recording(Toy):
    """A provider that remembers what it was asked for."""

    async def create(self, spec):
        self.shown = set(spec.env)
        self.env = {**spec.env, **spec.secrets}
        self.shown = set(spec.env)
        return await super().create(spec)


def left_of(root, *spared):
    """Every byte below a folder, but of some files."""
    return b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name not in spared)


def test_a_run_stores_references_and_its_sandbox_gets_the_values(tmp_path):
    async def whole():
        toy = Recording()
        async with Toys(tmp_path, toy) as engine:
            run_id = await engine.submit(planned(engine, [BOX]), RunOptions())
            stored = json.dumps(engine.stores.journal.load(run_id).task)
            assert CANARY not in stored
            assert TOKEN not in stored
            assert (await engine.execute(run_id)).status == "completed"
            assert toy.env == {"API_KEY": CANARY, "LOG_LEVEL": "debug", "OTHER": TOKEN, "DB_PASSWORD": CANARY, "SECRET_REF": ""}
            assert toy.shown <= {"LOG_LEVEL", "SECRET_REF"}  # the others are told to the place alone
            assert engine.redactor.redact(f"it is {CANARY}") == "it is ***"
        kept = left_of(tmp_path, "secrets.json")
        assert b"secret:kept/" in kept
        assert b"debug" in kept
        assert CANARY.encode() not in kept
        assert TOKEN.encode() not in kept
        assert (tmp_path / "secrets.json").stat().st_mode & 0o077 == 0

    run(whole())


def test_a_resume_in_another_process_resolves_what_was_kept(tmp_path):
    async def whole():
        async with Toys(tmp_path, Toy()) as engine:
            run_id = await engine.submit(planned(engine, [BOX]), RunOptions())
        toy = Recording()
        async with Toys(tmp_path, toy) as engine:
            assert (await engine.resume(run_id)).status == "completed"
            assert toy.env["API_KEY"] == CANARY

    run(whole())


def test_a_seeds_value_that_fills_a_secret_field_is_kept_apart_too(tmp_path):
    async def whole():
        async with Toys(tmp_path, Toy()) as engine:
            plan = planned(engine, [{**BOX, "env_vars": {"API_KEY": "key-<which>-suffix"}}])
            run_id = await engine.submit(plan, RunOptions(seed={"which": "one"}))
            assert "key-one-suffix" not in json.dumps(engine.stores.journal.load(run_id).task)

    run(whole())


KEPT = {
    "a key that is never stored": {"litellm_api_key": CANARY},
    "such a key at any depth": {"metadata": {"deep": [{"judge_litellm_api_key": CANARY}]}},
    "everything below such a key": {"remote_tokens": {"a": [CANARY]}},
    "a secret-typed field": {"env_vars": {"API_KEY": CANARY}},
    "the default of a reference": {"env_vars": {"API_KEY": f"env:X?{CANARY}"}},
}
SHOWN = {
    "a reference": {"env_vars": {"API_KEY": "env:NAME"}},
    "a variable that is no secret": {"env_vars": {"LOG_LEVEL": CANARY}},
    "an empty secret": {"env_vars": {"API_KEY": ""}},
    "another field": {"metadata": {"note": CANARY}},
}


def kept(value):
    return f"secret:kept/{len(value)}"


@pytest.mark.parametrize("what", KEPT)
def test_what_moves(what):
    (made,) = without_literals([{**BOX, "env_vars": None, **KEPT[what]}], kept)
    assert CANARY not in json.dumps(made)
    assert kept(CANARY) in json.dumps(made)


def test_c13_of_urls_those_move_that_carry_a_user_or_a_key():
    plain, secret = "https://example.org/a.zip?x=1", f"https://me:{CANARY}@example.org/b.zip"
    steps = [
        {"id": "l", "type": "load_artifact", "urls": [plain, secret, {"url": secret, "filename": "f"}, {"url": plain}, "env:URL", 3]},
        {"id": "c", "type": "run_docker_container", "docker_context_url": secret},
        {"id": "d", "type": "run_docker_container", "docker_context_url": plain},
    ]
    made = without_literals(steps, kept)
    reference = kept(secret)
    assert made[0]["urls"] == [plain, reference, {"url": reference, "filename": "f"}, {"url": plain}, "env:URL", 3]
    assert (made[1]["docker_context_url"], made[2]) == (reference, steps[2])
    assert list(references_in(made)) == [reference, reference, "env:URL", reference]


@pytest.mark.parametrize("what", SHOWN)
def test_what_stays(what):
    steps = [{**BOX, "env_vars": None, **SHOWN[what]}]
    assert without_literals(steps, kept) is steps
