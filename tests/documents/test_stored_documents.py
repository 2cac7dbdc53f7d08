"""Stored documents in the reference's shapes: both spellings read, both written, everything wrong said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.documents.agent import AgentDocument, read_agent
from agent_env.documents.artifact import path_problem, read_artifact
from agent_env.documents.artifact_kinds import ARTIFACT_TYPES, EnvironmentUniverseArtifact
from agent_env.documents.environment import ENVIRONMENT_TYPES, read_environment
from agent_env.documents.evaluation import read_eval
from agent_env.documents.skill import parse_skill
from agent_env.documents.stored import StoredDocument
from agent_env.errors import ProblemsError
from tests.documents.fuzzing import problems_of
from tests.documents.test_reading import JSON_VALUES

IMAGE = {"id": "tickets__image", "version": 2, "type": "docker_image"}
DOCUMENTS: list[tuple[Callable[..., StoredDocument], dict[str, Any]]] = [
    (
        read_artifact,
        {
            "id": "f",
            "version": 1,
            "type": "file",
            "description": "d",
            "filename": "a.txt",
            "content_type": "text/plain",
            "s3_url": "u",
            "object_url": "u",
        },
    ),
    (
        read_artifact,
        {
            "id": "u",
            "version": 3,
            "type": "file_artifact_universe",
            "file_artifact_refs": {"a/b.txt": {"id": "u__1", "version": 1}},
            "file_artifact_ids": {"a/b.txt": "u__1"},
            "bundle_s3_url": "file:///x",
            "bundle_object_url": "file:///x",
        },
    ),
    (
        read_artifact,
        {
            "id": "i",
            "version": 1,
            "type": "docker_image",
            "description": "",
            "image_name": "r/x:v1",
            "tar_gz_s3_url": "t",
            "tar_gz_object_url": "t",
            "build_context_s3_url": "c",
            "build_context_object_url": "c",
            "source_digest": "s",
        },
    ),
    (
        read_artifact,
        {
            "id": "e",
            "version": 1,
            "type": "environment",
            "service_name": "mail",
            "environment_name": "mail",
            "description": "",
            "file_artifact_ref": {"id": "e__file", "version": 1},
        },
    ),
    (
        read_artifact,
        {
            "id": "eu",
            "version": 1,
            "type": "environment_universe",
            "service_artifact_refs": [{"id": "e", "version": 1}],
            "environment_artifact_refs": [{"id": "e", "version": 1}],
            "metadata_refs": {"k": {"id": "m", "version": 2}},
        },
    ),
    (
        read_artifact,
        {
            "id": "c",
            "version": 1,
            "type": "cli",
            "cli_files_id": "c__files",
            "cli_s3_url": "o",
            "cli_object_url": "o",
            "entrypoint": "bin/x",
            "command_name": "x",
            "env_id": "e",
            "env_version": 1,
        },
    ),
    (
        read_artifact,
        {
            "id": "s",
            "version": 1,
            "type": "skill",
            "skill_files_id": "s__files",
            "skill_s3_url": "o",
            "skill_object_url": "o",
            "agent_skills_spec_version": "0.1",
            "skill_name": "s",
            "description": "d",
            "license": "MIT",
            "skill_metadata": {"a": "b"},
        },
    ),
    (
        read_environment,
        {
            "id": "tickets",
            "type": "mcp_server",
            "version": 4,
            "metadata": {},
            "docker_image_artifact": IMAGE,
            "service_name": "tickets",
            "environment_name": "tickets",
            "env_provider_type": "gateway",
        },
    ),
    (
        read_environment,
        {
            "id": "w",
            "type": "website",
            "version": 1,
            "metadata": {"updated_at": "x"},
            "backend_docker_image_artifact": IMAGE,
            "frontend_docker_image_artifact": IMAGE,
            "service_name": "tickets",
            "environment_name": "tickets",
            "env_provider_type": "gateway",
        },
    ),
    (
        read_environment,
        {
            "id": "office",
            "type": "multi",
            "version": 2,
            "metadata": {},
            "name": "office",
            "mcp_server_envs": [{"id": "tickets", "type": "mcp_server", "version": 4}],
            "website_envs": [],
            "env_provider_type": "gateway",
        },
    ),
    (
        read_environment,
        {
            "id": "db",
            "type": "service_db",
            "version": 1,
            "metadata": {},
            "db_docker_image_artifact": IMAGE,
            "db_web_docker_image_artifact": IMAGE,
            "db_mcp_docker_image_artifact": IMAGE,
        },
    ),
    (read_environment, {"id": "default", "type": "gateway_server", "version": 1, "metadata": {}, "docker_image_artifact": IMAGE}),
    (
        read_environment,
        {
            "id": "pc",
            "type": "computer_driver",
            "version": 1,
            "metadata": {},
            "module": "d.py:Driver",
            "files": IMAGE,
            "declaration": {"name": "pc"},
        },
    ),
    (
        read_agent,
        {
            "id": "a",
            "type": "a2a_agent",
            "version": 1,
            "docker_image_artifact": IMAGE,
            "default_env_vars": {"A": "1"},
            "metadata": {"default_model": "m"},
        },
    ),
    (
        read_eval,
        {"id": "ev", "type": "eval", "version": 1, "tasks": [{"task_id": "t", "task_version": None}, {"task_id": "u", "task_version": 2}]},
    ),
]


@pytest.mark.parametrize(("read", "document"), DOCUMENTS, ids=lambda value: value["type"] if isinstance(value, dict) else "")
def test_a_document_of_the_reference_is_written_as_it_was_read(read: Callable[..., StoredDocument], document: dict[str, Any]) -> None:
    stored = {**document, "created_at_utc": "2026-01-01T00:00:00Z", "newer_key": {"x": [1, 1]}}
    assert read(stored, source="store").to_json() == {**document, "newer_key": {"x": [1, 1]}}


@pytest.mark.parametrize(("read", "document"), DOCUMENTS, ids=lambda value: value["type"] if isinstance(value, dict) else "")
def test_either_spelling_alone_is_enough(read: Callable[..., StoredDocument], document: dict[str, Any]) -> None:
    model = read(document)
    for legacy, name in type(model).twins.items():
        for dropped in (legacy, name):
            assert read({key: value for key, value in document.items() if key != dropped}).to_json() == document


def test_artifacts_prefer_the_legacy_key_and_environments_the_new_one() -> None:
    file = read_artifact({"id": "f", "type": "file", "filename": "x", "s3_url": "old", "object_url": "new"})
    assert file.to_json()["object_url"] == "old"
    server = read_environment(
        {"id": "t", "type": "mcp_server", "docker_image_artifact": IMAGE, "service_name": "old", "environment_name": "new"}
    )
    assert server.to_json()["service_name"] == "new"


def test_unpinned_legacy_spellings_of_a_universe_are_read() -> None:
    universe = read_artifact({"id": "u", "type": "environment_universe", "service_artifact_ids": ["a", "b"], "metadata": {"k": "m"}})
    assert isinstance(universe, EnvironmentUniverseArtifact)
    assert [ref.id for ref in universe.environments] == ["a", "b"]
    assert universe.metadata_files["k"].id == "m"


def test_an_agents_old_top_level_keys_move_into_its_metadata() -> None:
    agent = read_agent(
        {"id": "a", "docker_image_artifact": IMAGE, "min_disk_size_gb": 20, "default_model": "old", "metadata": {"default_model": "m"}}
    )
    assert isinstance(agent, AgentDocument)
    assert (agent.min_disk_size_gb, agent.default_model, agent.takes_credentials) == (20.0, "m", True)


@pytest.mark.parametrize(
    ("read", "document", "said"),
    [
        (read_artifact, {"id": "x", "type": "flie"}, "did you mean 'file'"),
        (read_artifact, {"id": "x"}, "unknown type"),
        (read_artifact, [], "is an object"),
        (read_artifact, {"id": "", "type": "file"}, r"a/1: \$\.filename"),
        (read_artifact, {"id": "x", "type": "environment", "environment_name": "m"}, "names no file"),
        (read_artifact, {"id": "x", "type": "environment_universe"}, "is empty"),
        (read_artifact, {"id": "x", "type": "cli", "cli_files_id": "f", "entrypoint": "e", "command_name": "a b"}, "command_name"),
        (read_environment, {"id": "x", "type": "mcp_server", "environment_name": "a", "docker_image_artifact": {"id": "i"}}, "not pinned"),
        (read_environment, {"id": "x", "type": "multi"}, "no environment"),
        (read_environment, {"id": "x", "type": "multi", "name": "a b", "website_envs": [IMAGE]}, "white space"),
        (read_eval, {"id": "x", "tasks": []}, r"\$\.tasks"),
        (read_eval, {"id": "x", "tasks": [{"task_id": "t"}, {"task_id": "t"}]}, "twice"),
    ],
)
def test_a_malformed_document_is_refused_with_its_path(read: Callable[..., StoredDocument], document: Any, said: str) -> None:
    with pytest.raises(ProblemsError, match=said):
        read(document, source="a/1")


FIELDS = sorted({name for cls in (*ARTIFACT_TYPES.values(), *ENVIRONMENT_TYPES.values()) for name in cls.model_fields})


@given(
    st.sampled_from([read_artifact, read_environment, read_agent, read_eval]),
    st.dictionaries(st.sampled_from(FIELDS), JSON_VALUES, max_size=5),
    st.sampled_from([*ARTIFACT_TYPES, *ENVIRONMENT_TYPES, "eval", "a2a_agent"]),
)
def test_any_object_ends_in_a_document_or_in_problems(read: Callable[..., StoredDocument], data: dict[str, Any], type_name: str) -> None:
    found = problems_of(lambda: read({"type": type_name, **data}, source="store"))
    assert all(problem.file == "store" and problem.path for problem in found)


@pytest.mark.parametrize("path", ["", "/a", "a/../b", "..", "a//b", "./a", "a/", ".", "a\0", "x" * 256])
def test_paths_of_a_universe_stay_inside(path: str) -> None:
    assert path_problem(path)


@pytest.mark.parametrize("path", ["a", "a/b.txt", ".env", "a b", "...", "-rf", "a\nb", "é"])
def test_odd_but_legal_paths_are_allowed(path: str) -> None:
    assert path_problem(path) is None


SKILL = "---\nname: sort-mail\ndescription: Sorts mail.\nmetadata:\n  a: b\n---\n# Body\n"


def test_a_skill_is_read_with_its_body() -> None:
    skill = parse_skill(SKILL, source="SKILL.md", folder="sort-mail")
    assert (skill.name, skill.description, dict(skill.metadata), skill.body) == ("sort-mail", "Sorts mail.", {"a": "b"}, "# Body\n")
    assert parse_skill(SKILL.replace("\n", "\r\n"), source="s").name == "sort-mail"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# no frontmatter", "no frontmatter"),
        ("---\nname: a", "no frontmatter"),
        ("---\n- a\n---\n", "table"),
        ("---\nname: [a\n---\n", "not valid YAML: .* at line 3"),
        ("---\nname: a--b\ndescription: d\n---\n", "name can't be"),
        ("---\nname: A\ndescription: d\n---\n", "name can't be"),
        ("---\nname: x\ndescription: d\n---\n", "folder is 'y'"),
        ("---\nname: y\n---\n", "description is missing"),
        (f"---\nname: y\ndescription: {'d' * 1025}\n---\n", "1025 characters"),
        ("---\nname: y\ndescription: d\nmetadata: {a: 1}\n---\n", r"\$\.metadata\.a"),
        ("---\nname: y\ndescription: d\ndescripton: e\n---\n", "did you mean 'description'"),
        ("---\nname: y\ndescription: d\nallowed-tools: [a]\n---\n", "allowed-tools is text"),
        ("---\n1: y\n---\n", "keys are text"),
    ],
)
def test_a_malformed_skill_is_refused(text: str, said: str) -> None:
    with pytest.raises(ProblemsError, match=said):
        parse_skill(text, source="SKILL.md", folder="y")


@given(
    st.binary(max_size=60) | st.text(alphabet="-:\n namedscripto[]{}&*!'\"#1", max_size=60).map(lambda text: f"---\n{text}\n---\n".encode())
)
def test_any_bytes_end_in_a_skill_or_in_problems(data: bytes) -> None:
    found = problems_of(lambda: parse_skill(data, source="SKILL.md", folder="y"))
    assert all(problem.file == "SKILL.md" for problem in found)
