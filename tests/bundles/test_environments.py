"""Environments of a bundle: images and documents of their own, named by their sources, written only when something changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_env.bundles import materialise, plan_folder
from agent_env.bundles.materialising import Written
from agent_env.engine.options import Stores
from agent_env.errors import ProblemsError
from tests.bundles.building import Content, write

SERVER = '@environment_card(name="{name}")\nclass Server: ...\n'
DEPLOY = {"id": "env", "type": "deploy_env", "env_id": "tickets"}


def server(name: str, card: str | None = None) -> dict[str, Content]:
    """A folder whose only files are a Dockerfile and sources."""
    sources = SERVER.format(name=card or name)
    return {f"envs/{name}/Dockerfile": "FROM scratch\nCOPY server.py /\n", f"envs/{name}/server.py": sources}


def deploying(*names: str) -> dict[str, Content]:
    steps = [{**DEPLOY, "id": f"env-{name}", "env_id": name} for name in names]
    return {"tasks/up.json": steps}


TICKETS = {**server("tickets"), **deploying("tickets")}


def put(root: Path, stores: Stores, *, dry_run: bool = False) -> Written:
    return materialise(plan_folder(root, stores), stores, dry_run=dry_run)


def lines(written: Written) -> dict[str, str]:
    return {entry.name: str(entry).partition(": ")[2] for entry in written.entries}


def problems(root: Path, stores: Stores) -> list[str]:
    with pytest.raises(ProblemsError) as caught:
        plan_folder(root, stores)
    return [str(problem) for problem in caught.value.problems]


def test_a_folder_with_a_dockerfile_becomes_an_image_and_an_environment_that_is_pinned_to_it(
    tmp_path: Path, stores: Stores, home: Path
) -> None:
    root = write(tmp_path / "bundle", {**TICKETS, "bundle.toml": 'name = "desk"'})
    assert lines(put(root, stores)) == {
        "envs/tickets/Dockerfile": "v1 (new)",
        "envs/tickets": "v1 (new)",
        "tasks/up.json": "v1 (new)",
    }
    stored = stores.documents.get("envs", "@local/desk/tickets")
    assert stored is not None
    assert stored.type == "mcp_server"
    assert stored.body == {
        "metadata": {},
        "docker_image_artifact": {"id": "@local/desk/tickets__env_image", "version": 1, "type": "docker_image"},
        "environment_name": "tickets",
        "service_name": "tickets",
        "env_provider_type": "gateway",
    }
    image = stores.artifacts.get("@local/desk/tickets__env_image")
    assert image.type == "docker_image"
    assert image.body["dockerfile_path"] == "Dockerfile"


def test_only_what_changed_is_written_again_and_the_reason_is_said(tmp_path: Path, stores: Stores, home: Path) -> None:
    root = write(tmp_path / "bundle", TICKETS)
    put(root, stores)
    assert lines(put(root, stores)) == {
        "envs/tickets/Dockerfile": "v1, unchanged",
        "envs/tickets": "v1, unchanged",
        "tasks/up.json": "v1, unchanged",
    }
    write(root, {"envs/tickets/server.py": SERVER.format(name="tickets") + "# more\n"})
    predicted = lines(put(root, stores, dry_run=True))
    again = lines(put(root, stores))
    assert again == predicted
    assert again["envs/tickets/Dockerfile"] == "v2 (changed server.py)"
    assert again["envs/tickets"].startswith("v2 (")
    assert "v1 → v2" in again["envs/tickets"]
    assert again["tasks/up.json"] == "v1, unchanged"


def test_a_change_of_a_servers_sources_makes_new_work_of_its_tasks_and_a_move_does_not(tmp_path: Path, stores: Stores, home: Path) -> None:
    from agent_env.bundles.work import plan_work

    def key(root: Path) -> str:
        return plan_work(put(root, stores))[0].key

    first = key(write(tmp_path / "here", TICKETS))
    assert key(write(tmp_path / "there", TICKETS)) == first
    assert key(write(tmp_path / "there", {"envs/tickets/server.py": SERVER.format(name="tickets") + "# more\n"})) != first


def test_a_multi_is_written_after_its_parts_and_pins_them(tmp_path: Path, stores: Stores, home: Path) -> None:
    toml = 'type = "multi"\nname = "office"\nmcp_server_envs = ["tickets", "mail"]\nwebsite_envs = ["portal"]\n'
    portal: dict[str, Content] = {
        "envs/portal/env.toml": 'type = "website"\nenvironment_name = "tickets"\n',
        "envs/portal/Dockerfile.backend": "FROM scratch\n",
        "envs/portal/Dockerfile.frontend": "FROM scratch\n",
    }
    root = write(
        tmp_path / "bundle",
        {**server("tickets"), **server("mail"), **portal, "envs/office/env.toml": toml, **deploying("office"), "bundle.toml": 'name = "d"'},
    )
    names = list(lines(put(root, stores)))
    assert names.index("envs/office") > max(names.index(f"envs/{part}") for part in ("tickets", "mail", "portal"))
    stored = stores.documents.get("envs", "@local/d/office")
    assert stored is not None
    assert stored.body["mcp_server_envs"] == [
        {"id": "@local/d/tickets", "version": 1, "type": "mcp_server"},
        {"id": "@local/d/mail", "version": 1, "type": "mcp_server"},
    ]
    assert stored.body["website_envs"] == [{"id": "@local/d/portal", "version": 1, "type": "website"}]
    website = stores.documents.get("envs", "@local/d/portal")
    assert website is not None
    assert website.body["backend_docker_image_artifact"]["id"] == "@local/d/portal__backend_image"
    assert website.body["frontend_docker_image_artifact"]["id"] == "@local/d/portal__frontend_image"


def test_a_universe_of_environments_is_written_with_an_artifact_for_each(tmp_path: Path, stores: Stores, home: Path) -> None:
    universe: dict[str, Content] = {
        "artifacts/morning/artifact.toml": 'type = "environment_universe"\n',
        "artifacts/morning/tickets/seed.json": '{"tickets": []}',
        "artifacts/morning/metadata/persona/persona.txt": "Kim\n",
    }
    load = {"id": "load", "type": "load_artifact", "env_id": "tickets", "artifact_id": "morning"}
    task = {"tasks/up.json": [DEPLOY, load]}
    root = write(tmp_path / "bundle", {**server("tickets"), **universe, **task, "bundle.toml": 'name = "d"'})
    put(root, stores)
    assert sorted(stores.artifacts.files("@local/d/morning")) == ["metadata/persona/persona.txt", "tickets/seed.json"]
    assert stores.artifacts.get("@local/d/morning__tickets").body["environment_name"] == "tickets"
    assert stores.artifacts.get("@local/d/morning__tickets__file").type == "file"
    assert stores.artifacts.get("@local/d/morning__metadata__persona").type == "file"
    assert "artifacts/morning: v1, unchanged" in map(str, put(root, stores).entries)


REFUSED: list[tuple[str, dict[str, Content], str]] = [
    ("no card in the sources", {**TICKETS, "envs/tickets/server.py": "print()\n"}, "environment_name is missing"),
    (
        "two cards in the sources",
        {**TICKETS, "envs/tickets/other.py": SERVER.format(name="other")},
        "environment_name is missing, and its sources name it 'other', 'tickets'",
    ),
    ("a name of the gateway's", {**server("tickets", card="gateway"), **deploying("tickets")}, "is one of the gateway's own"),
    ("a name that no host can have", {**server("tickets", card="my tickets"), **deploying("tickets")}, "can't be used"),
    (
        "a registry's image without a name",
        {"envs/tickets/env.toml": 'image = { ref = "docker.io/library/x:1" }\n', **deploying("tickets")},
        "environment_name is missing",
    ),
    ("no Dockerfile", {"envs/tickets/env.toml": 'environment_name = "tickets"\n', **deploying("tickets")}, "has no Dockerfile"),
    (
        "a Dockerfile outside",
        {**TICKETS, "envs/tickets/env.toml": 'image = { dockerfile = "../Dockerfile" }\n'},
        "lies outside of this folder",
    ),
    ("a Dockerfile that is not there", {**TICKETS, "envs/tickets/env.toml": 'image = { dockerfile = "x" }\n'}, "no file 'x' here"),
    ("a provider that nobody knows", {**TICKETS, "envs/tickets/env.toml": 'env_provider_type = "gatewey"\n'}, "did you mean 'gateway'?"),
    (
        "a website by itself",
        {
            "envs/tickets/env.toml": 'type = "website"\nenvironment_name = "tickets"\nenv_provider_type = "server"\n',
            "envs/tickets/Dockerfile.backend": "FROM scratch\n",
            "envs/tickets/Dockerfile.frontend": "FROM scratch\n",
            **deploying("tickets"),
        },
        "deploys one server by itself",
    ),
    (
        "two parts of one name",
        {
            **server("tickets"),
            **server("copy", card="tickets"),
            "envs/office/env.toml": 'type = "multi"\nmcp_server_envs = ["tickets", "copy"]\n',
            **deploying("office"),
        },
        "two of its parts have a container 'tickets'",
    ),
    (
        "a driver",
        {"envs/tickets/env.toml": 'type = "computer_driver"\nmodule = "driver.py:Driver"\n', **deploying("tickets")},
        "env_provider_type",
    ),
]


@pytest.mark.parametrize(("files", "said"), [pytest.param(files, said, id=name) for name, files, said in REFUSED])
def test_what_can_not_become_an_environment_is_refused_with_its_reason(
    files: dict[str, Content], said: str, tmp_path: Path, stores: Stores, home: Path
) -> None:
    told = problems(write(tmp_path / "bundle", files), stores)
    assert len(told) == 1
    assert said in told[0]


def test_a_name_of_the_gateways_is_free_for_a_lone_server(tmp_path: Path, stores: Stores, home: Path) -> None:
    files = {**server("tickets", card="gateway"), "envs/tickets/env.toml": 'env_provider_type = "server"\n', **deploying("tickets")}
    plan_folder(write(tmp_path / "bundle", files), stores)


def test_our_own_decorator_names_a_server_too(tmp_path: Path, stores: Stores, home: Path) -> None:
    files = {**TICKETS, "envs/tickets/server.py": 'import sdk\n@sdk.environment(name="tickets")\nclass Server: ...\n'}
    plan_folder(write(tmp_path / "bundle", files), stores)
