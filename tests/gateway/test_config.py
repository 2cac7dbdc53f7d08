"""What a gateway is told, from a document or from the reference's variables; and what it says when that can't be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agent_env.errors import ConfigError
from agent_env.gateway.config import CONFIG_VARIABLE, KEY_VARIABLE, read_config, settings
from tests.gateway.parts import ROOT, Client, gateway, raw_server, text_of
from tests.gateway.raw_server import tool

REFERENCE = {
    "INTERNAL_MCP_SERVERS": "tickets,mail=http://mail:9000/v2/mcp",
    "REST_PROXY_URLS": "mcp-tickets=http://tickets:18765,mcp-mail=http://mail:9000,shop=http://shop-website-backend:8000",
    "WEBSITE_URLS": "shop=http://shop-website-frontend:80",
    "MCP_SERVER_NAME": "office",
    "GATEWAY_MODE": "consistent",
    "MCP_PORT": "1234",
    "GATEWAY_TRAJECTORY_FILE": "/var/log/agentenv/trajectory.jsonl",
}


def test_the_reference_s_variables_mean_what_they_mean_there() -> None:
    config = read_config(None, REFERENCE)
    assert [(each.name, each.url, each.mcp_path, each.website, each.frontend) for each in config.servers] == [
        ("tickets", "http://tickets:18765", None, False, None),
        ("mail", "http://mail:9000", "/v2/mcp", False, None),
        ("shop", "http://shop-website-backend:8000", None, True, "http://shop-website-frontend:80"),
    ]
    assert (config.name, config.mode, config.agent_doors, config.state_dir) == (
        "office",
        "consistent",
        ("0.0.0.0:1234",),
        "/var/log/agentenv",
    )
    assert config.unauthenticated_role == "default", "its clients send no token"


WRONG = [
    ('{"servers": 7}', "servers: "),
    ('{"servers": [{"name": "a", "url": "ftp://x"}]}', "servers.0.url: 'ftp://x' is not an http or https URL"),
    ('{"servers": [{"name": "a", "url": "http://x"}, {"name": "a", "url": "http://y"}]}', "servers: mcp-a given twice"),
    ('{"nmae": "x"}', "nmae: "),
    ('{"agent_doors": ["18765"]}', "'18765' is not host:port"),
    ('{"limits": {"cal_seconds": 1}}', "limits: unknown cal_seconds"),
    ('{"unauthenticated_role": " "}', "unauthenticated_role: empty"),
    ("{", "not JSON"),
]


@pytest.mark.parametrize(("text", "said"), WRONG)
def test_a_document_that_can_t_be_is_refused_with_the_place(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(None, {CONFIG_VARIABLE: text})
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{CONFIG_VARIABLE}: ")


@pytest.mark.parametrize(
    "environ",
    [
        {"INTERNAL_MCP_SERVERS": "a,,b"},
        {"INTERNAL_MCP_SERVERS": "a,a"},
        {"WEBSITE_URLS": "a"},
        {"WEBSITE_URLS": "a=ftp://x"},
        {"GATEWAY_MODE": "x"},
    ],
)
def test_variables_that_can_t_be_are_refused(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        read_config(None, environ)


def test_a_missing_file_and_a_folder_that_can_t_be_written_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        read_config(str(tmp_path / "nope"), {})
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="can't be used"):
        settings(read_config(None, {CONFIG_VARIABLE: json.dumps({"state_dir": str(tmp_path / "file")})}), {})


def test_a_key_that_nobody_gave_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    config = read_config(None, {CONFIG_VARIABLE: json.dumps({"state_dir": str(tmp_path / "state")})})
    first = settings(config, {})
    assert first.key == settings(config, {}).key
    assert len(first.key) == 64
    assert (tmp_path / "state" / "control.key").stat().st_mode & 0o777 == 0o600
    assert settings(config, {KEY_VARIABLE: "given"}).key == b"given"
    assert first.key.decode() not in repr(first)


def test_the_command_says_in_one_line_why_it_can_t_start(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"nmae": 1}')
    done = subprocess.run(
        [sys.executable, "-m", "agent_env.gateway", "--config", str(file)], cwd=ROOT, capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode() == f"gateway: {file}: nmae: no such key\n"


def test_a_door_that_is_taken_is_told(tmp_path: Path) -> None:
    with raw_server("s", tools=[tool("t")]) as server:
        document = {"agent_doors": [f"127.0.0.1:{server.port}"], "control_doors": [], "state_dir": str(tmp_path)}
        environ = {CONFIG_VARIABLE: json.dumps(document)}
        done = subprocess.run(
            [sys.executable, "-m", "agent_env.gateway"], cwd=ROOT, env=environ, capture_output=True, timeout=60, check=False
        )
        assert done.returncode == 2
        assert f"the door 127.0.0.1:{server.port} can't be opened: Address already in use" in done.stderr.decode()


def test_a_gateway_started_as_the_reference_s_serves_a_client_that_sends_no_token(tmp_path: Path) -> None:
    with (
        raw_server("s", tools=[tool("t")]) as server,
        gateway(tmp_path, server, unauthenticated_role="default") as live,
        Client(f"{live.agent}/mcp", {"agentenv-role": "other"}) as client,
    ):
        assert text_of(client.call("t")) == "s.t"
