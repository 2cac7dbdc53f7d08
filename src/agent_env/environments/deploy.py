"""From a document to a live environment: what it consists of, what speaks against it, and the provider that deploys it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal

from agent_env.documents.environment import (
    GATEWAY_NAMES,
    GatewayServerEnvironment,
    McpServerEnvironment,
    MultiEnvironment,
    ServiceDbEnvironment,
    WebsiteEnvironment,
)
from agent_env.documents.records import DeployedEnvironment
from agent_env.documents.stored import Ref, StoredDocument
from agent_env.environments.by_url import UrlEnvironment
from agent_env.environments.contract import (
    DeployOptions,
    DeployPlan,
    EnvironmentProvider,
    LiveEnvironment,
    Lookup,
    Making,
    ServerPlan,
    WebsitePlan,
)
from agent_env.environments.records import check_record, new_instance_id
from agent_env.environments.registry import BUILT_IN, environment_provider
from agent_env.environments.settings import EnvironmentSettings
from agent_env.errors import AgentEnvError, InfrastructureError, NotFoundError, Problem, ProblemsError, UserError
from agent_env.waiting import deadline

if TYPE_CHECKING:
    from agent_env.artifacts.image_artifacts import ImageSource

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
"""Of a server: it becomes a container's name, a host name and a schema."""
ALWAYS_TAKEN = frozenset({"ttl_seconds", "attribution", "secrets"})
"""Options that every provider has to take: they concern what it makes through us."""


def plan_of(
    document: StoredDocument,
    lookup: Lookup,
    *,
    settings: EnvironmentSettings,
    options: DeployOptions | None = None,
    sandbox: str | None = None,
    step_id: str | None = None,
    metadata: Mapping[str, object] | None = None,
) -> DeployPlan:
    """An environment with everything that its document names looked up.

    Args:
        document: A deployable environment.
        lookup: Finds documents and images.
        settings: Names the documents of gateway and database.
        options: What the one who deploys chose.
        sandbox: A provider of sandboxes, or a chain of them.
        step_id: The step that deploys it.
        metadata: What that step adds to the record.

    Raises:
        NotFoundError: Something that it names does not exist.
        UserError: Its type is a part, and is not deployed alone.
    """
    parts = _topology(document, lookup)
    plan = DeployPlan(
        env_id=document.id,
        env_version=document.version,
        kind=parts.kind,
        provider=parts.provider,
        servers=tuple(parts.servers),
        websites=tuple(parts.websites),
        name=parts.name,
        sandbox=sandbox,
        instance_id=new_instance_id(document.id),
        step_id=step_id,
        metadata=dict(metadata or {}),
        options=options or DeployOptions(),
    )
    if parts.provider != "gateway":
        return plan
    database = _component(lookup, settings.database_env_id)
    gateway = _component(lookup, settings.gateway_env_id)
    return replace(
        plan,
        database=_database_images(database, lookup) if isinstance(database, ServiceDbEnvironment) else {},
        gateway_image=lookup.image(gateway.docker_image_artifact) if isinstance(gateway, GatewayServerEnvironment) else None,
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    kind: Literal["mcp_server", "website", "multi"]
    provider: str
    servers: Sequence[ServerPlan] = ()
    websites: Sequence[WebsitePlan] = ()
    name: str | None = None


def _topology(document: StoredDocument, lookup: Lookup) -> _Parts:
    match document:
        case McpServerEnvironment():
            return _Parts("mcp_server", document.env_provider_type, servers=[_server(document, lookup)])
        case WebsiteEnvironment():
            return _Parts("website", document.env_provider_type, websites=[_website(document, lookup)])
        case MultiEnvironment():
            servers = [_server(lookup.environment(ref), lookup) for ref in document.mcp_server_envs]
            websites = [_website(lookup.environment(ref), lookup) for ref in document.website_envs]
            return _Parts("multi", document.env_provider_type, servers, websites, document.name)
    hint = "serve it from an image, as an mcp_server" if document.type == "computer_driver" else "it stands beside others"
    raise UserError(f"environment {document.id!r} is a {document.type}, which can't be deployed", concerns=document.id, hint=hint)


def _server(document: StoredDocument, lookup: Lookup) -> ServerPlan:
    if not isinstance(document, McpServerEnvironment):
        raise UserError(f"environment {document.id!r} is a {document.type}, not an mcp_server", concerns=document.id)
    return ServerPlan(document.environment_name, lookup.image(document.docker_image_artifact), document.id, document.version)


def _website(document: StoredDocument, lookup: Lookup) -> WebsitePlan:
    if not isinstance(document, WebsiteEnvironment):
        raise UserError(f"environment {document.id!r} is a {document.type}, not a website", concerns=document.id)
    backend = lookup.image(document.backend_docker_image_artifact)
    frontend = lookup.image(document.frontend_docker_image_artifact)
    return WebsitePlan(document.environment_name, backend, frontend, document.id, document.version)


def _component(lookup: Lookup, env_id: str) -> StoredDocument | None:
    """A part that the reference has under a well-known id; ours need none."""
    try:
        return lookup.environment(Ref(id=env_id))
    except NotFoundError:
        return None


def _database_images(document: ServiceDbEnvironment, lookup: Lookup) -> Mapping[str, ImageSource]:
    refs = {
        "db": document.db_docker_image_artifact,
        "web": document.db_web_docker_image_artifact,
        "mcp": document.db_mcp_docker_image_artifact,
    }
    return {name: lookup.image(ref) for name, ref in refs.items()}


# what speaks against it


def problems(plan: DeployPlan) -> Iterator[Problem]:
    """Why a plan can't be deployed, as far as documents and options tell: known before anything is made."""
    try:
        provider = environment_provider(plan.provider)
    except AgentEnvError as error:
        yield Problem(error.message, plan.env_id, "$.env_provider_type", error.hint)
        return
    for message in provider.problems(plan):
        yield Problem(message, plan.env_id)
    yield from _refused_options(plan, provider)
    yield from _names(plan)


def _refused_options(plan: DeployPlan, provider: EnvironmentProvider) -> Iterator[Problem]:
    plain = DeployOptions()
    for field in fields(DeployOptions):
        given = getattr(plan.options, field.name)
        if given != getattr(plain, field.name) and field.name not in provider.options | ALWAYS_TAKEN:
            hint = f"it takes {', '.join(sorted(provider.options | ALWAYS_TAKEN))}"
            yield Problem(f"the provider {plan.provider!r} takes no option {field.name!r}", plan.env_id, hint=hint)


def _names(plan: DeployPlan) -> Iterator[Problem]:
    """Names become containers, host names and schemas; two of the same would be one."""
    containers = [server.name for server in plan.servers]
    for website in plan.websites:
        containers += [f"{website.name}-website-backend", f"{website.name}-website-frontend"]
    for name, count in Counter(containers).items():
        if count > 1:
            yield Problem(f"two servers would be called {name!r}", plan.env_id, hint="give one of them another environment_name")
    for name in dict.fromkeys([*(server.name for server in plan.servers), *(website.name for website in plan.websites)]):
        if not _NAME.fullmatch(name):
            hint = "letters, digits, dots, dashes and underscores, up to 63, and letters or digits first and last"
            yield Problem(f"{name!r} can't be the name of a server", plan.env_id, "$.environment_name", hint)
        if plan.provider == "gateway" and name in GATEWAY_NAMES - {"website-browser"}:
            yield Problem(f"the name {name!r} is the gateway's own", plan.env_id, "$.environment_name", "choose another one")
    if plan.provider not in {"gateway", "server"}:
        for name in sorted({server.name for server in plan.servers} & {website.name for website in plan.websites}):
            yield Problem(f"an MCP server and a website are both called {name!r}, which only the gateway can tell apart", plan.env_id)


# deploying


async def deploy(plan: DeployPlan, making: Making) -> LiveEnvironment:
    """Deploys a plan with the one provider of sandboxes that `making` stands for.

    What it had made when it fails is the caller's to remove: the sandboxes that `making` made.

    Raises:
        ProblemsError: The plan can't be deployed; nothing was made.
        UnsupportedError: The provider of sandboxes can't; nothing was made.
        ToolNameClashError: Two servers have a tool of the same name; no other provider would change that.
        InfrastructureError: It could not be deployed; the message names the server and has the end of its log.
    """
    found = [*problems(plan)]
    if found:
        raise ProblemsError(found)
    provider = environment_provider(plan.provider)
    try:
        async with deadline(making.limits.environment_deploy_seconds, f"deploying environment {plan.env_id!r}"):
            live = await provider.deploy(plan, making)
    except AgentEnvError:
        raise
    except Exception as error:  # a provider may be anybody's code
        raise InfrastructureError(
            f"the provider of environments {plan.provider!r} broke: {type(error).__name__}: {error}", concerns=plan.env_id
        ) from error
    if plan.provider in BUILT_IN:
        return live
    try:
        check_record(live.record, plan)
    except BaseException:  # nobody gets this one
        await live.aclose()
        raise
    return live


async def attach(record: DeployedEnvironment, making: Making) -> LiveEnvironment:
    """A deployed environment from its record, in any process.

    Raises:
        SandboxUnavailableError: It is not running; says what of it.
        UserError: Its provider is not installed here.
    """
    type = _type_of(record)
    if type in BUILT_IN and not record.parts:  # written elsewhere, or before there were parts: its addresses are all that is known
        return await UrlEnvironment.found(record, making)
    return await environment_provider(type).attach(record, making)


async def destroy(record: DeployedEnvironment, making: Making) -> None:
    """Removes a deployed environment, also what its provider has outside of sandboxes. Idempotent."""
    type = _type_of(record)
    if type in BUILT_IN and not record.parts:
        if record.sandbox_id is not None:
            await making.remove(record.sandbox_id)
        return
    await environment_provider(type).destroy(record, making)


def _type_of(record: DeployedEnvironment) -> str:
    return record.env_provider_type or ("gateway" if record.shape == "gateway" else "server")
