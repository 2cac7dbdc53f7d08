"""Websites of an environment: a backend with a data plane, and a frontend that people and browsers look at."""

from __future__ import annotations

from collections.abc import Mapping

from agent_env_sdk.wire.names import NAME_VARIABLE

from agent_env.environments.contract import ContainerWanted, WebsitePlan

BACKEND_PORT, FRONTEND_PORT = 8000, 80
HEALTH_PATH = "/api/health"


def backend_name(name: str) -> str:
    """What the backend is called on its network (reference)."""
    return f"{name}-website-backend"


def frontend_name(name: str) -> str:
    """What the frontend is called on its network (reference)."""
    return f"{name}-website-frontend"


def backend_wanted(website: WebsitePlan, *, secrets: Mapping[str, str], networks: tuple[str, ...]) -> ContainerWanted:
    """The backend's container; its database is among the secrets."""
    env = {NAME_VARIABLE: website.name, "SERVICE_NAME": website.name, "PORT": str(BACKEND_PORT), "PYTHONUNBUFFERED": "1"}
    return ContainerWanted(backend_name(website.name), website.backend_image, env=env, secrets=secrets, networks=networks)


def frontend_wanted(website: WebsitePlan, *, networks: tuple[str, ...]) -> ContainerWanted:
    """The frontend's container."""
    return ContainerWanted(frontend_name(website.name), website.frontend_image, networks=networks)
