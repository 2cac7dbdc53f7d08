"""What servers' images say of themselves, in an engine and where sandboxes are made of images, and what comes of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent_env.defaults import DEFAULT_LIMITS
from agent_env.documents.records import DeployedPart
from agent_env.environments.contract import DOOR, SandboxWanted
from agent_env.environments.providers.gateway_apart import _Apart, deploy_apart
from agent_env.environments.providers.gateway_parts import ImageSays, says
from agent_env.environments.settings import EnvironmentSettings
from agent_env.errors import UnsupportedError, UserError
from agent_env.gateway.config import CONFIG_VARIABLE
from agent_env.images import BuildContext, BuildRequest, ImageReference
from agent_env.images.oci.manifests import ImageConfig
from agent_env.images.platforms import Platform
from agent_env.places import Shape
from agent_env.sandboxes.contract import Capabilities
from tests.environments.bench import plan, run, stock_with, world

NAMED = "registry.example/stock:1"


@pytest.mark.parametrize(
    ("exposed", "labels", "said"),
    [
        ((), {}, ImageSays("i")),
        (("9100/tcp",), {}, ImageSays("i", 9100)),
        (("9100",), {}, ImageSays("i", 9100)),
        (("9100/tcp", "9200/tcp"), {}, ImageSays("i")),
        (("9100/tcp", f"{DOOR}/tcp"), {}, ImageSays("i")),
        (("5353/udp",), {}, ImageSays("i")),
        ((), {"agentenv.mcp-path": "/v2/mcp", "agentenv.database": "postgres"}, ImageSays("i", DOOR, "/v2/mcp", database=True)),
        ((), {"agentenv.mcp-path": "mcp"}, ImageSays("i", DOOR, "mcp")),
        ((), {"agentenv.mcp-path": "/", "maintainer": "somebody"}, ImageSays("i", DOOR, "/")),
    ],
)
def test_a_servers_image_says_port_path_and_database(exposed: Sequence[str], labels: Mapping[str, str], said: ImageSays) -> None:
    assert says("i", labels=labels, exposed=exposed, name=NAMED) == said


def test_all_that_an_image_says_and_nobody_can_use_is_told_at_once() -> None:
    labels = {"agentenv.mcp-path": "http://stock/mcp", "agentenv.database": "mysql"}
    with pytest.raises(UserError) as caught:
        says("i", labels=labels, exposed=("8000-8010/tcp", "70000/tcp"), name=NAMED)
    for words in (NAMED, "'70000', '8000-8010', which is no port", "agentenv.mcp-path='http://stock/mcp'", "agentenv.database='mysql'"):
        assert words in caught.value.message


@pytest.mark.parametrize("path", ["", "a b", "/mcp?x=1", "//mcp", "/mcp\n"])
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(UserError, match="which is no path"):
        says("i", labels={"agentenv.mcp-path": path}, exposed=(), name=NAMED)


class AskedError(Exception):
    """The first sandbox that was asked for."""


class Making:
    """Makes nothing: whoever asks for a sandbox is told so with what was wanted."""

    limits = DEFAULT_LIMITS
    settings = EnvironmentSettings()
    sandbox_provider = "rootfs"

    def __init__(self, config: ImageConfig | None, **capabilities: Any) -> None:
        self._config = config
        self._capabilities = Capabilities(Shape.CONTAINER_SHAPED, frozenset(), **capabilities)

    async def capabilities(self) -> Capabilities:
        return self._capabilities

    async def image_config(self, image: object) -> ImageConfig | None:
        assert image == NAMED
        return self._config

    async def sandbox(self, wanted: SandboxWanted, _: object) -> None:
        raise AskedError(wanted)

    def derive(self, *words: str) -> str:
        return ":".join(words)

    def secret(self, value: str) -> str:
        return value

    def tell(self, message: str) -> None:
        del message


def config(*exposed: str, **labels: str) -> ImageConfig:
    named = {f"agentenv.{name.replace('_', '-')}": value for name, value in labels.items()}
    return ImageConfig(Platform.here(), exposed_ports=exposed, labels=named)


def first_wanted(making: Making) -> SandboxWanted:
    """What deploying a server whose image is known by its name alone asks for first."""
    wanted = plan("tickets", provider="gateway", images={"tickets": NAMED}, gateway_image="registry.example/gateway:1")
    with pytest.raises(AskedError) as caught:
        run(deploy_apart(wanted, making))  # type: ignore[arg-type]
    found: SandboxWanted = caught.value.args[0]
    return found


def test_a_database_that_a_named_images_label_asks_for_stands_before_the_server_where_sandboxes_are_containers() -> None:
    assert first_wanted(Making(config(database="postgres"))).name == "servicedb"
    assert first_wanted(Making(config())).name == "tickets"
    with pytest.raises(UnsupportedError, match="elsewhere"):
        first_wanted(Making(config(database="postgres"), on_this_machine=False))


def test_the_port_that_a_named_image_exposes_is_its_servers_where_sandboxes_are_containers() -> None:
    wanted = first_wanted(Making(config("9100/tcp")))
    assert (wanted.ports, wanted.env["MCP_PORT"]) == ((9100,), "9100")
    assert first_wanted(Making(None)).ports == (DOOR,)


def test_a_label_of_a_named_image_that_nobody_can_use_is_told_before_anything_is_made() -> None:
    with pytest.raises(UserError, match="'mysql'"):
        first_wanted(Making(config(database="mysql")))


def test_the_gateway_is_told_the_path_that_a_named_images_label_says() -> None:
    part = DeployedPart(kind="mcp_server", name="tickets", sandbox_id="s", container_name="tickets", port=DOOR, host_port=40000)
    said = {"tickets": ImageSays(NAMED, DOOR, "/v2/mcp")}
    wanted = plan("tickets", provider="gateway", images={"tickets": NAMED})
    apart = _Apart(wanted, Making(None), True, True, said, {"tickets": part})  # type: ignore[arg-type]
    with pytest.raises(AskedError) as caught:
        run(apart._gateway("registry.example/gateway:1"))
    (server,) = json.loads(caught.value.args[0].env[CONFIG_VARIABLE])["servers"]
    assert server["mcp_path"] == "/v2/mcp"


@pytest.mark.slow
def test_an_image_known_by_its_name_alone_says_where_its_server_is(python_base: str, tmp_path: Path) -> None:
    """Unpacking takes longest; each part of it is tested above."""
    image = stock_with(tmp_path / "image", "stock-named", STOCK_CARDLESS="1", STOCK_MCP_PATH="/v2/mcp")
    with (tmp_path / "image/Dockerfile").open("a") as file:
        file.write("EXPOSE 9100\nLABEL agentenv.mcp-path=/v2/mcp\n")
    image = BuildRequest(BuildContext.of(tmp_path / "image"), ImageReference.parse("agentenv-test/stock-named:1"))

    async def body() -> None:
        async with world(tmp_path / "state", provider="rootfs") as here:
            await (await here.making().images()).build(image)
            named = f"docker-daemon:{image.name.tagged_name}"
            live = await here.deploy(plan("tickets", provider="gateway", images={"tickets": named}))
            assert live.record.parts["tickets"].port == 9100
            assert len(await live.control.tools()) == 5

    run(body())
