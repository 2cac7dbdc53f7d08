"""`add_skills`: gives a deployed agent skills: written in the task, kept as artifacts, or made for what was installed in its place."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Self

from agent_env_sdk.wire.agent_bodies import SKILL_NAME
from agent_env_sdk.wire.agent_extensions import SKILL_CONFIG
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator

from agent_env.agents.contract import LiveAgent
from agent_env.agents.outfit import InlineSkill
from agent_env.agents.staging import staged
from agent_env.documents.updates import Json
from agent_env.errors import Problem, UnsupportedError, UserError
from agent_env.steps.contract import EntityRef, OnResume, Plan, Run, Step, StepResult, apart
from agent_env.steps.fields import OptionalName, Texts, Whole
from agent_env.steps.targets import DEFAULT_AGENT, AgentTarget

_SLUG_CHARACTERS, _DIGEST_CHARACTERS = 45, 12
"""Of a made skill's name (reference)."""


class SkillEntry(BaseModel):
    """One skill: written here (`body`), an object, or an artifact."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True, populate_by_name=True)

    name: OptionalName = None
    """Letters, digits, `.`, `_` and `-`."""
    description: str | None = None
    """When the agent is to use it."""
    body: str | None = None
    """The skill's text, below its frontmatter."""
    object_url: OptionalName = Field(default=None, validation_alias=AliasChoices("object_url", "s3_url"))
    """An object that holds the whole SKILL.md."""
    skill_artifact_id: OptionalName = None
    """A stored skill."""
    skill_artifact_version: Annotated[Whole, Field(ge=1)] | None = None
    """Its version; the newest when absent."""
    license: str | None = None
    compatibility: str | None = None
    metadata: dict[str, str] | None = None
    allowed_tools: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [name for name in ("body", "object_url", "skill_artifact_id") if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(f"has {' and '.join(given)}; a skill has one source")
        return self

    @model_validator(mode="after")
    def _introduced(self) -> Self:
        given = [name for name in ("body", "object_url", "skill_artifact_id") if getattr(self, name)]
        if given != ["skill_artifact_id"] and not (self.name and self.description):
            raise ValueError("needs a name and a description")
        return self

    @model_validator(mode="after")
    def _nameable(self) -> Self:
        if self.name and not re.fullmatch(SKILL_NAME, self.name):
            raise ValueError(f"the name {self.name!r} can't be a skill's: letters, digits, '.', '_' and '-'")
        return self

    @property
    def has_source(self) -> bool:
        """Whether it says what the skill is."""
        return bool(self.body or self.object_url or self.skill_artifact_id)


@dataclass(frozen=True, slots=True)
class SkillsAdded(StepResult):
    """Which skills the agent has now."""

    agent_name: str
    names: Sequence[str]

    def summary(self) -> str:
        """Their names."""
        return f"{self.agent_name}: {', '.join(self.names) or 'none'}"


@dataclass(frozen=True, slots=True)
class _Given:
    """A skill that is given to the agent."""

    skill: InlineSkill
    files: Mapping[str, Path] = field(default_factory=dict)
    """All its files, where it has more than one."""


class AddSkills(Step, type="add_skills"):
    """Give a deployed agent skills."""

    on_resume: ClassVar[OnResume] = OnResume.REPEAT
    entity_refs: ClassVar[tuple[EntityRef, ...] | None] = (
        EntityRef("artifact", "skills[].skill_artifact_id", version_field="skill_artifact_version", artifact_type="skill"),
        EntityRef("artifact", "cli_artifact_ids[]"),
        EntityRef("artifact", "file_artifact_universe_ids[]"),
    )

    skills: tuple[SkillEntry, ...] = ()
    """The skills: `name`, `description`, and one of `body`, `object_url`, `skill_artifact_id`."""
    cli_artifact_ids: Texts = ()
    """Command lines that were loaded into the agent's place: a skill that tells how to use each is made."""
    file_artifact_universe_ids: Texts = ()
    """Universes of files that were loaded into the agent's place: a skill that tells what is there is made for each."""
    agent_name: str = Field(default=DEFAULT_AGENT, min_length=1)
    """The deployed agent."""

    @property
    def target(self) -> AgentTarget:
        """The agent."""
        return AgentTarget(self.agent_name)

    def problems(self, plan: Plan) -> Iterator[Problem]:
        """Every skill has a source; names are unique; artifacts exist."""
        seen: set[str] = set()
        for index, skill in enumerate(self.skills):
            path = f".skills[{index}]"
            yield from apart(_sourced(skill, path), _listed_once(skill, path, seen), _stored(skill, path, plan))

    async def execute(self, run: Run) -> SkillsAdded:
        """Gives them one after another: agents write them into one folder. A skill that is there already and is the same is left.

        Raises:
            UnsupportedError: The agent takes no skills.
            NotFoundError: A skill's artifact or object does not exist.
            UserError: A command line or universe was not loaded into the agent.
            AgentFailedError: The agent refuses a skill.
        """
        agent = await run.agent(self.agent_name)
        if not await agent.supports(SKILL_CONFIG, "add"):
            raise UnsupportedError(f"agent {self.agent_name!r} takes no skills: its card has no {SKILL_CONFIG}", concerns=self.id)
        skills = [*(self._written(each, run) for each in self.skills), *(_Given(each) for each in self._made(run))]
        there = await self._there(agent)
        for number, given in enumerate(skills):
            skill = given.skill
            run.progress(f"skill {skill.name}", done=number, total=len(skills))
            if there.get(skill.name) == skill.description:
                continue
            if given.files:
                await self._whole(agent, given, run)
            else:
                await agent.invoke(SKILL_CONFIG, "add", {**_named(skill), "skill_md": skill.text})
        return SkillsAdded(self.agent_name, [each.skill.name for each in skills])

    async def _whole(self, agent: LiveAgent, given: _Given, run: Run) -> None:
        """A skill of several files goes by way of the agent's own store."""
        async with staged(agent, run.limits, run.clock) as staging:
            objects = {name: await staging.put(name, path) for name, path in sorted(given.files.items())}
            files = [{"path": name, "object": each} for name, each in objects.items()]
            total = sum(each["max_bytes"] for each in objects.values())
            body = {**_named(given.skill), "skill_bundle": {"max_total_bytes": total, "files": files}}
            await agent.invoke(SKILL_CONFIG, "add", body, seconds=run.limits.transfer_seconds)

    async def _there(self, agent: LiveAgent) -> dict[str, str]:
        """Skills that it has: name → description."""
        if not await agent.supports(SKILL_CONFIG, "list"):
            return {}
        answer = await agent.invoke(SKILL_CONFIG, "list")
        found = answer.get("skills") if isinstance(answer, Mapping) else None
        return {str(name): str((about or {}).get("description") or "") for name, about in (found or {}).items()}

    def _written(self, entry: SkillEntry, run: Run) -> _Given:
        if entry.skill_artifact_id:
            return self._stored(entry, run)
        text = run.objects.read(entry.object_url).decode("utf-8", "replace") if entry.object_url else skill_md(entry)
        return _Given(InlineSkill(str(entry.name), str(entry.description), text))

    def _stored(self, entry: SkillEntry, run: Run) -> _Given:
        from agent_env.documents.skill import SKILL_FILE, parse_skill

        document = run.artifacts.get(str(entry.skill_artifact_id), entry.skill_artifact_version)
        run.used("artifacts", document.id, document.version, document.digest)
        files = run.artifacts.files(document.id, document.version)
        if SKILL_FILE not in files:
            raise UserError(f"artifact {document.id!r} is no skill: it has no {SKILL_FILE}", concerns=self.id)
        text = run.artifacts.read(files[SKILL_FILE]).decode("utf-8", "replace")
        skill = parse_skill(text, source=f"{document.id}/{SKILL_FILE}")
        paths = {name: run.artifacts.path(ref) for name, ref in files.items()} if len(files) > 1 else {}
        return _Given(InlineSkill(entry.name or skill.name, entry.description or skill.description, text), paths)

    def _made(self, run: Run) -> Iterator[InlineSkill]:
        installed = (run.metadata.get("installed_clis") or {}).get(self.agent_name) or {}
        for id in self.cli_artifact_ids:
            about = installed.get(id) if isinstance(installed, Mapping) else None
            if about is None:
                hint = f"load it first: load_artifact with artifact_id {id!r} and agent_name {self.agent_name!r}"
                raise UserError(f"the command line {id!r} was not loaded into agent {self.agent_name!r}", concerns=self.id, hint=hint)
            yield cli_skill(about)
        loaded = [each for each in run.metadata.get("loaded_file_artifact_universes") or () if each.get("agent_name") == self.agent_name]
        for id in self.file_artifact_universe_ids:
            found = [each for each in loaded if id in {each.get("id"), each.get("artifact_id")}]
            if not found:
                hint = f"load it first: load_artifact with artifact_id {id!r} and agent_name {self.agent_name!r}"
                raise UserError(f"the universe {id!r} was not loaded into agent {self.agent_name!r}", concerns=self.id, hint=hint)
            yield files_skill(id, found[-1])


def _named(skill: InlineSkill) -> dict[str, Json]:
    return {"name": skill.name, "description": skill.description}


def skill_md(entry: SkillEntry) -> str:
    """A SKILL.md with its frontmatter."""
    import yaml

    head: dict[str, Json] = {"name": entry.name, "description": entry.description}
    for key, value in (("license", entry.license), ("compatibility", entry.compatibility), ("metadata", entry.metadata)):
        if value:
            head[key] = value
    if entry.allowed_tools:
        head["allowed-tools"] = entry.allowed_tools
    return f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---\n\n{(entry.body or '').strip()}\n"


def cli_skill(about: Mapping[str, Json]) -> InlineSkill:
    """A skill for a command line that is installed in the agent's place."""
    command, path = str(about.get("command_name") or about.get("command")), str(about.get("path") or about.get("command_path") or "")
    name = f"{_slug(command)}-cli"
    description = f"Use the command {command} to work with the environment's tools from a shell."
    program = path or command
    body = (
        f"`{program}` lists its commands with `{program} --help`, and what one of them takes with `{program} COMMAND --help`.\n"
        "Each command calls one tool of the environment and prints what it answers.\n"
    )
    return InlineSkill(name, description, skill_md(SkillEntry(name=name, description=description, body=body)))


def files_skill(id: str, about: Mapping[str, Json]) -> InlineSkill:
    """A skill for files that were loaded into the agent's place."""
    folder = str(about.get("destination_path") or about.get("path") or "/")
    files = [str(each) for each in about.get("files") or ()]
    name = f"{_slug(id)[:_SLUG_CHARACTERS].strip('-')}-{hashlib.sha256(id.encode()).hexdigest()[:_DIGEST_CHARACTERS]}-files"
    description = f"Files of {id} that are in {folder}. Look here first when the task is about them."
    listed = "\n".join(f"- `{folder.rstrip('/')}/{path}`" for path in files) or f"- everything below `{folder}`"
    return InlineSkill(name, description, skill_md(SkillEntry(name=name, description=description, body=f"The files:\n\n{listed}")))


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.casefold()).strip("-") or "x"


def _sourced(skill: SkillEntry, path: str) -> Iterator[Problem]:
    if not skill.has_source:
        yield Problem("a skill needs body, object_url or skill_artifact_id", path=path)


def _listed_once(skill: SkillEntry, path: str, seen: set[str]) -> Iterator[Problem]:
    if skill.name in seen:
        yield Problem(f"the skill {skill.name!r} is listed twice", path=f"{path}.name")
    seen |= {skill.name} if skill.name else set()


def _stored(skill: SkillEntry, path: str, plan: Plan) -> Iterator[Problem]:
    id = skill.skill_artifact_id
    if plan.artifacts is not None and id and plan.artifact(id, skill.skill_artifact_version) is None:
        yield Problem(f"artifact {id!r} does not exist", path=f"{path}.skill_artifact_id")
