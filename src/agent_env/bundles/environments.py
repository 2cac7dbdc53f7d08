"""Environments of a bundle: the images that they (and agents) are built into, the name that their server goes by, and their documents.

An image is an artifact of its own, with an id derived from the environment's, so that a change of its sources alone makes a new version of
both. Nothing here looks at a store.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from agent_env.bundles.agents import AGENT_IMAGE
from agent_env.bundles.model import BundleKind, Entry
from agent_env.documents.reading import at
from agent_env.documents.updates import Json
from agent_env.errors import Problem
from agent_env.ids import derive_id

if TYPE_CHECKING:
    from agent_env.bundles.references import Reference, ResolvedEntry
    from agent_env.images import BuildContext

IMAGE_TYPE = "docker_image"
DEFAULT_PROVIDER = "gateway"
_OWN_IMAGE: Mapping[BundleKind, str] = {BundleKind.ENV: "env_image", BundleKind.AGENT: AGENT_IMAGE}
"""What its one image is called beside it."""
IMAGE_KEYS: Mapping[str, Mapping[str, str]] = {
    "mcp_server": {"image": "Dockerfile"},
    "website": {"backend_image": "Dockerfile.backend", "frontend_image": "Dockerfile.frontend"},
    "a2a_agent": {"image": "Dockerfile"},
}
"""Type → its image keys, each with the Dockerfile that an absent one means."""
_NAMED_BY: Mapping[str, str] = {"mcp_server": "image", "website": "backend_image"}
"""Type → the image whose sources may say what the server is called."""
_CARDS = frozenset({"environment_card", "environment"})
"""Decorators whose `name` a server goes by: the published package's, and ours."""
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
NAME_RULE = "1 to 63 letters, digits, '.', '_' and '-', a letter or digit first and last: it names containers, schemas and hosts"

Versions = Callable[["Reference"], int]
"""The version of a document that is referred to, written or predicted."""


def image_entries(entry: Entry) -> Iterator[tuple[str, Entry]]:
    """The images of an environment or agent that its own toml or folder says how to get, by image key."""
    for key, usual in IMAGE_KEYS.get(entry.type, {}).items() if entry.kind in _OWN_IMAGE else ():
        value = entry.config.get(key)
        if value is not None and not (isinstance(value, dict) and len(value) == 1):
            continue
        config = {"dockerfile": usual} if value is None else {name: value[name] for name in ("dockerfile", "ref") if name in value}
        if config:
            suffix = _OWN_IMAGE[entry.kind] if key == "image" else key
            path = f"{entry.path}/{config['dockerfile']}" if "dockerfile" in config else f"{entry.path}/{key}"
            yield (
                key,
                Entry(
                    BundleKind.ARTIFACT,
                    f"{entry.name}__{suffix}",
                    derive_id(entry.id, suffix),
                    path,
                    IMAGE_TYPE,
                    config,
                    folder=entry.folder,
                ),
            )


def image_problems(entry: Entry) -> Iterator[Problem]:
    """What is wrong with the Dockerfiles that an environment names."""
    for key, image in image_entries(entry):
        dockerfile = image.config.get("dockerfile")
        if dockerfile is None or entry.folder is None:
            continue
        path = PurePosixPath(dockerfile)
        if path.is_absolute() or ".." in path.parts or not _is_inside(entry.folder, entry.folder / path):
            yield Problem(f"{key}: the Dockerfile {dockerfile!r} lies outside of this folder", entry.config_file, at("$", key))
        elif not (entry.folder / path).is_file():
            said = f"has no {dockerfile}" if key not in entry.config else f"{key}: there is no file {dockerfile!r} here"
            yield Problem(said, entry.path, hint=f'write one, or say where the image is from: {key} = {{ ref = "registry/image:tag" }}')


def _is_inside(folder: Path, path: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def server_name(entry: Entry, context: BuildContext | None) -> tuple[str | None, Problem | None]:
    """What an environment's server is called: what its toml says, else the one name in the sources of its image.

    Args:
        entry: The environment.
        context: The sources of the image that may say it; None where it is not built here.

    Returns:
        The name, or what is wrong; neither for a type that has no server of its own.
    """
    key = _NAMED_BY.get(entry.type)
    if key is None:
        return None, None
    said, where = entry.config.get("environment_name"), "$.environment_name"
    if said is None:
        if context is None:
            if any(image_problems(entry)):
                return None, None  # it is told already why nothing can be built here
            hint = "only the sources of an image that is built here can say it"
            return None, Problem("environment_name is missing", entry.config_file, hint=hint)
        found = sorted({name for file in context.entries if file.name.endswith(".py") for name in card_names(file.path)})
        if len(found) != 1:
            many = (
                f"name it {', '.join(map(repr, found))}" if found else "don't say it with @environment_card(name=…) or @environment(name=…)"
            )
            return None, Problem(f"environment_name is missing, and its sources {many}", entry.config_file, hint='environment_name = "…"')
        said, where = found[0], ""
    if not _NAME.fullmatch(str(said)):
        return None, Problem(f"the environment_name {said!r} can't be used", entry.config_file, where or None, hint=NAME_RULE)
    from agent_env.documents.environment import GATEWAY_NAMES

    if said in GATEWAY_NAMES and provider_of(entry.config) == DEFAULT_PROVIDER:
        return None, Problem(
            f"the environment_name {said!r} is one of the gateway's own", entry.config_file, where or None, "give it another"
        )
    return str(said), None


def card_names(file: Path) -> set[str]:
    """The names in a Python file's environment cards, as far as they are written out. Nothing is run."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return set()  # what can't be read here can't be run there; that is its image's to say
    return {
        keyword.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _called(node.func) in _CARDS
        for keyword in node.keywords
        if keyword.arg == "name" and isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, str)
    }


def _called(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def provider_of(config: Mapping[str, Json]) -> str:
    """The environment provider that a toml or document names."""
    return str(config.get("env_provider_type") or DEFAULT_PROVIDER)


def provider_problem(entry: Entry, known: Sequence[str]) -> Problem | None:
    """Why its provider can't deploy it, as far as names tell."""
    provider = provider_of(entry.config)
    if provider not in known:
        from agent_env.documents.spelling import near

        meant = near(provider, known)
        hint = f"did you mean {meant!r}?" if meant else f"there are {', '.join(sorted(known))}"
        return Problem(f"there is no environment provider {provider!r}", entry.config_file, "$.env_provider_type", hint)
    if provider == "server" and entry.type != "mcp_server":
        message = f"the environment provider 'server' deploys one server by itself, and this is of type {entry.type!r}"
        return Problem(message, entry.config_file, "$.env_provider_type", "use 'gateway'")
    return None


def container_names(type: str, name: str) -> tuple[str, ...]:
    """What the containers of a server or website are called beside others."""
    return (name,) if type == "mcp_server" else (f"{name}-website-backend", f"{name}-website-frontend")


def clash_problems(entry: Entry, children: Sequence[tuple[str, str]]) -> Iterator[Problem]:
    """Parts of a multi whose containers would have one name.

    Args:
        entry: The multi.
        children: Type and `environment_name` of each, as far as they are known.
    """
    seen: set[str] = set()
    for type, name in children:
        for container in container_names(type, name):
            if container in seen:
                yield Problem(
                    f"two of its parts have a container {container!r}", entry.config_file, hint="give one another environment_name"
                )
            seen.add(container)


def environment_body(resolved: ResolvedEntry, version: Versions) -> dict[str, Json]:
    """An environment's stored document, in the reference's shape, without what the store itself keeps.

    Args:
        resolved: The environment, with its server's name filled in.
        version: Of each document that it refers to.
    """
    from agent_env.documents.environment import ENVIRONMENT_TYPES

    entry = resolved.entry
    refs = {key: [_ref(reference, version(reference)) for reference in found] for key, found in resolved.by_key.items()}
    body: dict[str, Json] = {"id": entry.id, "type": entry.type, "env_provider_type": provider_of(entry.config)}
    match entry.type:
        case "mcp_server":
            body |= {"docker_image_artifact": refs["image"][0]}
        case "website":
            body |= {f"{role}_docker_image_artifact": refs[f"{role}_image"][0] for role in ("backend", "frontend")}
        case "multi":
            body |= {"mcp_server_envs": refs.get("mcp_server_envs", []), "website_envs": refs.get("website_envs", [])}
            body |= {"name": entry.config["name"]} if "name" in entry.config else {}
    if entry.type in _NAMED_BY:
        body["environment_name"] = entry.config["environment_name"]
    stored = ENVIRONMENT_TYPES[entry.type].read(body, source=entry.path).to_json()
    return {key: value for key, value in stored.items() if key not in ("id", "type", "version")}


def planned_environment(resolved: ResolvedEntry) -> dict[str, Json]:
    """An environment's document as far as it is known before it is written: without versions."""
    entry = resolved.entry
    body: dict[str, Json] = {"id": entry.id, "type": entry.type, "version": None, "env_provider_type": provider_of(entry.config)}
    body |= {key: entry.config[key] for key in ("environment_name", "name") if entry.config.get(key)}
    for key in ("mcp_server_envs", "website_envs"):
        body |= {key: [{"id": reference.id, "version": reference.version} for reference in resolved.by_key.get(key, ())]}
    return body


_REF_TYPES = {"image": IMAGE_TYPE, "mcp_server_envs": "mcp_server", "website_envs": "website"}


def _ref(reference: Reference, version: int) -> dict[str, Json]:
    key = re.match(r"\$\.(\w+)", reference.path)
    name = key[1] if key else ""
    type = _REF_TYPES.get(name) or (IMAGE_TYPE if name.endswith("_image") else None)
    return {"id": reference.id, "version": version, **({"type": type} if type else {})}
