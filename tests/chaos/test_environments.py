"""A seeded sample of `python -m tests.chaos.desk`: one run of desk, whose command, gateway and keeper are killed once each."""

from __future__ import annotations

import os
import random
import secrets

import pytest

from agent_env.containers import EngineEndpoint
from tests.chaos.desk import STEPS, VICTIMS, Killing, Scene
from tests.environment_steps.conftest import User, postgres_image, python_base, user

__all__ = ["postgres_image", "python_base", "user"]


@pytest.mark.timeout(900)
def test_desk_ends_as_if_nobody_had_killed_the_command_its_gateway_and_the_keeper(
    user: User, docker: EngineEndpoint, postgres_image: str
) -> None:
    del postgres_image
    seed = os.environ.get("CHAOS_SEED") or secrets.token_hex(4)
    print(f"CHAOS_SEED={seed}")
    aims = dict(zip(random.Random(seed).sample(STEPS, len(VICTIMS)), VICTIMS, strict=True))
    chain = Killing(Scene(user, docker), aims, seed, {}).run()
    assert chain.wrong == [], [str(strike) for strike in chain.strikes]
