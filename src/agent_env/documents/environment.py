"""The six types of environment, as stored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from agent_env.documents.stored import Ref, StoredDocument, read_by_type

Json = Any
GATEWAY_NAMES = frozenset({"gateway", "servicedb", "pgweb", "db-mcp", "website-browser"})
"""Names that the gateway's own containers have."""


def _pinned(ref: Ref) -> Ref:
    if ref.version is None:
        raise ValueError("is not pinned to a version")
    return ref


def _word(name: str) -> str:
    if not name or re.search(r"\s", name):
        raise ValueError("is a name without white space")
    return name


PinnedRef = Annotated[Ref, AfterValidator(_pinned)]


class Environment(StoredDocument):
    """What every environment has."""

    metadata: dict[str, Json] = Field(default_factory=dict)
    """The one part that changes without a new version."""


class McpServerEnvironment(Environment):
    """One server."""

    twins: ClassVar[Mapping[str, str]] = {"service_name": "environment_name"}
    legacy_first: ClassVar[bool] = False

    type: Literal["mcp_server"] = "mcp_server"
    docker_image_artifact: PinnedRef
    environment_name: str = Field(min_length=1)
    env_provider_type: str = Field(default="gateway", min_length=1)


class WebsiteEnvironment(Environment):
    """A website: a backend with a data plane, and a frontend."""

    twins: ClassVar[Mapping[str, str]] = {"service_name": "environment_name"}
    legacy_first: ClassVar[bool] = False

    type: Literal["website"] = "website"
    backend_docker_image_artifact: PinnedRef
    frontend_docker_image_artifact: PinnedRef
    environment_name: str = Field(min_length=1)
    env_provider_type: str = Field(default="gateway", min_length=1)


class MultiEnvironment(Environment):
    """Several servers and websites, deployed together by the parent's provider."""

    type: Literal["multi"] = "multi"
    name: Annotated[str, AfterValidator(_word)] | None = None
    mcp_server_envs: list[PinnedRef] = Field(default_factory=list)
    website_envs: list[PinnedRef] = Field(default_factory=list)
    env_provider_type: str = Field(default="gateway", min_length=1)

    @model_validator(mode="after")
    def _has_parts(self) -> Self:
        if not self.mcp_server_envs and not self.website_envs:
            raise ValueError("holds no environment: mcp_server_envs and website_envs are empty")
        return self


class ServiceDbEnvironment(Environment):
    """The database beside a gateway; a part, not deployable alone."""

    type: Literal["service_db"] = "service_db"
    db_docker_image_artifact: PinnedRef
    db_web_docker_image_artifact: PinnedRef
    db_mcp_docker_image_artifact: PinnedRef


class GatewayServerEnvironment(Environment):
    """The gateway itself; a part, not deployable alone."""

    type: Literal["gateway_server"] = "gateway_server"
    docker_image_artifact: PinnedRef


class ComputerDriverEnvironment(Environment):
    """A computer that an agent uses; stored, not deployable."""

    type: Literal["computer_driver"] = "computer_driver"
    module: str = Field(pattern=r"^[^:]+\.py:[A-Za-z_]\w*$")
    files: PinnedRef
    declaration: dict[str, Json]


ENVIRONMENT_TYPES: Mapping[str, type[StoredDocument]] = {
    "mcp_server": McpServerEnvironment,
    "website": WebsiteEnvironment,
    "multi": MultiEnvironment,
    "service_db": ServiceDbEnvironment,
    "gateway_server": GatewayServerEnvironment,
    "computer_driver": ComputerDriverEnvironment,
}


def read_environment(data: Json, *, source: str | None = None, path: str = "$") -> StoredDocument:
    """An environment's document of the class that its type names.

    Raises:
        ProblemsError: Everything wrong with it.
    """
    return read_by_type(ENVIRONMENT_TYPES, data, what="an environment", source=source, path=path)
