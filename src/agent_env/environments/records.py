"""Records of deployed environments: made here, in the reference's shape, and read back into what is live."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from agent_env_sdk.wire.card import EnvironmentCard, find_child
from agent_env_sdk.wire.names import CARD_PATH
from pydantic import ValidationError

from agent_env.clock import Clock
from agent_env.documents.records import DeployedEnvironment, DeployedPart
from agent_env.environments.contract import DeployPlan
from agent_env.environments.faults import NotAdvertisedError
from agent_env.errors import InfrastructureError

Json = Any
GATEWAY = "gateway"
DATABASE = "servicedb"
MACHINE = "machine"
_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"


def new_instance_id(env_id: str) -> str:
    """`<env id>-<8 characters>` (reference)."""
    return f"{env_id}-{''.join(secrets.choice(_LETTERS) for _ in range(8))}"


def stamp(moment: datetime) -> str:
    """A moment as these records have it: to the minute, in UTC (reference)."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def record_of(
    plan: DeployPlan, clock: Clock, *, base_url: str, card: Mapping[str, Json], own: DeployedPart, sandbox_type: str, **fields: Json
) -> DeployedEnvironment:
    """The record of an environment that was just deployed.

    Args:
        plan: What was deployed.
        clock: Says when.
        base_url: Its address as this process reaches it; the card's paths join onto it.
        card: As read from there.
        own: The environment's own place: the gateway, or the lone server.
        sandbox_type: The provider of its sandboxes.
        fields: Further fields of the record.
    """
    now = clock.now()
    metadata = dict(plan.metadata)
    if plan.step_id is not None:
        metadata["deploy_step_id"] = plan.step_id
    return DeployedEnvironment.model_validate(
        {
            "env_id": plan.env_id,
            "env_version": plan.env_version,
            "env_provider_type": plan.provider,
            "environment_card_url": f"{base_url.rstrip('/')}{CARD_PATH}",
            "environment_card": dict(card),
            "environment_card_read_at_utc": now.astimezone(UTC).isoformat(timespec="seconds"),
            "metadata": metadata,
            "instance_id": plan.instance_id,
            "created_at_utc": stamp(now),
            "expires_at_utc": stamp(now + timedelta(seconds=plan.options.ttl_seconds)),
            "sandbox_id": own.sandbox_id,
            "sandbox_type": sandbox_type,
            "container_id": own.container_id,
            **fields,
        }
    )


def child_card(record: DeployedEnvironment, name: str) -> EnvironmentCard:
    """The card of one server as the record has it; a lone server's card is its own child.

    Raises:
        NotAdvertisedError: The record has no card, or none of that name.
    """
    if record.environment_card is None:
        raise NotAdvertisedError(f"environment {record.env_id!r} was deployed without a card", concerns=record.env_id)
    try:
        found = find_child(EnvironmentCard.model_validate(record.environment_card), name)
    except ValidationError as error:
        raise NotAdvertisedError(f"the recorded card of environment {record.env_id!r} can't be read", concerns=record.env_id) from error
    if found is None:
        raise NotAdvertisedError(f"environment {record.env_id!r} has no card of {name!r}", concerns=record.env_id)
    return found


def record_problems(record: DeployedEnvironment, plan: DeployPlan) -> list[str]:
    """What is wrong with the record that a provider made (reference): it must let later steps find what the document names."""
    found = []
    if record.env_provider_type != plan.provider:
        found.append(f"its env_provider_type is {record.env_provider_type!r}, not {plan.provider!r}")
    if (record.environment_card is None) != (record.environment_card_url is None):
        found.append("it has only one of environment_card and environment_card_url")
    if not record.server_url:
        found.append("it has no MCP URL")
    if record.environment_card is None:
        if plan.kind == "multi":
            found.append("an environment of several servers needs a card")
        return found
    names = [*(server.name for server in plan.servers), *(website.name for website in plan.websites)]
    for name in names:
        try:
            child_card(record, name)
        except NotAdvertisedError as error:
            found.append(error.message)
    if plan.kind == "multi" and plan.name and record.server_name != plan.name:
        found.append(f"its MCP server is called {record.server_name!r}, not {plan.name!r}")
    for child in record.environment_card.get("children_environments") or ():
        url = child.get("url") if isinstance(child, dict) else None
        if isinstance(url, str) and not url.startswith("/"):
            found.append(f"the url {url!r} of a child's card is no path")
    return found


def check_record(record: DeployedEnvironment, plan: DeployPlan) -> None:
    """Refuses a record that later steps could not use.

    Raises:
        InfrastructureError: Everything that is wrong with it.
    """
    problems = record_problems(record, plan)
    if problems:
        raise InfrastructureError(
            f"the provider {plan.provider!r} deployed environment {plan.env_id!r}, and its record can't be used: {'; '.join(problems)}",
            concerns=plan.env_id,
        )
