"""`skill-config/v1`: skills are written into the agent's folder, whole or not at all, and listed."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from agent_env_sdk.wire.agent_bodies import SkillBundle, SkillInline
from agent_env_sdk.wire.errors import AgentEnvError

from .registrations import InvalidFieldsError, Registrations
from .turns import Skill

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .author import Agent


class Skills:
    """The skills of one agent.

    Args:
        agent: Whose they are.
        folder: Where they are written.
        registrations: Where they are listed.
    """

    def __init__(self, agent: Agent, folder: Path, registrations: Registrations) -> None:
        self._agent, self._folder, self._registrations = agent, folder, registrations
        self._one_at_a_time = asyncio.Lock()

    async def add(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        """Installs a skill.

        Raises:
            AgentEnvError: The fields don't fit, a skill of that name is there (409), or a file can't be fetched.
        """
        model = SkillBundle if "skill_bundle" in sent else SkillInline
        try:
            body = model.model_validate(sent)
        except ValidationError as error:
            raise InvalidFieldsError(error) from None
        async with self._one_at_a_time:
            if body.name in self._registrations.skills:
                raise AgentEnvError("duplicate", f"a skill named {body.name!r} is installed already", status=409)
            await self._install(body)
        return {"name": body.name}

    def listed(self) -> dict[str, Any]:
        """What is installed."""
        return {"skills": {skill.name: {"description": skill.description} for skill in self._registrations.skills.values()}}

    async def _install(self, body: SkillInline | SkillBundle) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=".new-", dir=self._folder))
        try:
            await self._write(body, aside)
            target = self._folder / body.name
            await asyncio.to_thread(_put, aside, target)
        finally:
            await asyncio.to_thread(shutil.rmtree, aside, ignore_errors=True)
        text = body.skill_md if isinstance(body, SkillInline) else (target / "SKILL.md").read_text(errors="replace")
        skill = Skill(body.name, body.description, text, target)
        await self._agent.skill_added(skill, body)
        self._registrations.add_skill(skill)

    async def _write(self, body: SkillInline | SkillBundle, folder: Path) -> None:
        if isinstance(body, SkillInline):
            (folder / "SKILL.md").write_text(body.skill_md)
            return
        # Imported where it is used: it brings the environment side with it, which an agent may do without.
        from agent_env_sdk.environment.transfers import download

        for file in body.skill_bundle.files:
            path = folder / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            await download(file.object, path)


def _put(aside: Path, target: Path) -> None:
    # Left by a skill that was being installed when the agent's process ended: it was never listed.
    shutil.rmtree(target, ignore_errors=True)
    aside.chmod(0o755)
    aside.rename(target)
