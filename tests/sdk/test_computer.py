"""Computers: what a driver offers is what it has; points land where they were meant; refusals arrive before any input."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agent_env_sdk.computer import ComputerDriver, Platform, Settings
from agent_env_sdk.environment import AgentEnvError, FileBytes, FilePart
from agent_env_sdk.testing import CallResult, Client, McpSession, serve_here
from agent_env_sdk.wire import RpcError
from PIL import Image

from tests.sdk.computers import Blank, Painted

ROOT = Path(__file__).parents[2]


class Retina(Painted):
    """Two pixels of a capture a pixel of the screen."""

    scale = 2


def picture(result: CallResult) -> Image.Image:
    [block] = [block for block in result.content if block["type"] == "image"]
    return Image.open(io.BytesIO(base64.b64decode(block["data"])))


def told(result: CallResult) -> dict[str, Any]:
    assert not result.is_error, result.text
    assert result.structured is not None
    return result.structured


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


async def look(session: McpSession, **more: Any) -> tuple[str, Image.Image]:
    result = await session.call("computer_screenshot", more)
    return told(result)["frame_id"], picture(result)


async def uri(client: Client, name: str, method: str, **params: Any) -> Any:
    return await client.invoke(f"urn:agentenv:computer-{name}/v1", params, method=method)


async def test_a_click_lands_under_the_pixel_that_was_pointed_at_also_in_a_part_of_a_frame() -> None:
    computer = Retina()
    async with serve_here(computer) as client, client.session() as session:
        whole, shot = await look(session)
        assert shot.size == (640, 400)
        result = told(await session.call("computer_click", {"x": 101, "y": 51, "frame_id": whole, "screenshot": True}))
        assert (result["applied"], result["delivery"], result["others_since_frame"], result["effect"]) == (
            "yes",
            "foreground",
            0,
            {"focus_changed": True},
        )
        assert result["frame"]["frame_id"] != whole
        part, cropped = await look(session, region=[100, 50, 200, 100], frame_id=result["frame"]["frame_id"])
        assert (cropped.size, cropped.getpixel((0, 0)), cropped.getpixel((2, 2))) == ((100, 50), (255, 255, 255), (0, 0, 128))
        deeper, _ = await look(session, region=[0, 0, 1000, 500], frame_id=part, space="norm")
        click = {"x": 10, "y": 10, "frame_id": deeper, "button": "right", "count": 2, "modifiers": ["shift"]}
        told(await session.call("computer_click", click))
    assert computer.log == [("click", 50, 25, "left", 1, ()), ("click", 55, 30, "right", 2, ("Shift",))]


async def test_what_is_refused_sends_nothing() -> None:
    computer = Painted()
    async with serve_here(computer) as client, client.session() as session:
        no_frame = await session.call("computer_click", {"x": 1, "y": 1})
        assert no_frame.structured is not None
        assert no_frame.structured["code"] == "stale_frame"
        frame, _ = await look(session)
        cases = [
            ("computer_click", {"x": 320, "y": 0}, "out_of_bounds"),
            ("computer_click", {"x": 1001, "y": 0, "space": "norm"}, "out_of_bounds"),
            ("computer_click", {"x": 1}, "invalid_argument"),
            ("computer_click", {"x": 1, "y": 1, "count": 3}, "invalid_argument"),
            ("computer_click", {"x": 1, "y": 1, "button": "middle"}, "unsupported"),
            ("computer_click", {"x": 1, "y": 1, "frame_id": "f99"}, "stale_frame"),
            ("computer_drag", {"path": [[1, 1]]}, "invalid_argument"),
            ("computer_drag", {"path": [[1, 1], [400, 1]]}, "out_of_bounds"),
            ("computer_scroll", {"direction": "down", "amount": 0}, "invalid_argument"),
            ("computer_type", {"text": ""}, "invalid_argument"),
            ("computer_type", {"text": "a\x1bb"}, "invalid_argument"),
            ("computer_key", {"keys": ["ctrl", "s"]}, "invalid_argument"),
            ("computer_key", {"keys": []}, "invalid_argument"),
            ("computer_screenshot", {"region": [0, 0, 1]}, "invalid_argument"),
            ("computer_screenshot", {"region": [5, 5, 5, 9]}, "out_of_bounds"),
            ("computer_screenshot", {"quality": 50}, "invalid_argument"),
            ("computer_screenshot", {"frame_id": frame}, "invalid_argument"),
            ("computer_keyboard_up", {}, "invalid_argument"),
        ]
        for name, arguments, code in cases:
            refused = await session.call(name, arguments)
            assert refused.is_error, (name, arguments)
            assert refused.structured is not None
            assert (refused.structured["code"], refused.structured["applied"]) == (code, "no"), (name, arguments)
        hint = (await session.call("computer_key", {"keys": ["ctrl", "s"]})).structured
        assert hint is not None
        assert hint["hint"] == "did you mean Control?"
    assert computer.log == []


async def test_every_input_arrives_as_it_was_meant() -> None:
    computer = Painted()
    async with serve_here(computer) as client, client.session() as session:
        await look(session)
        told(await session.call("computer_pointer_move", {"x": 7, "y": 8}))
        told(await session.call("computer_click", {}))
        told(await session.call("computer_scroll", {"direction": "down", "x": 1, "y": 2}))
        told(await session.call("computer_drag", {"path": [[1, 1], [5, 5], [9, 9]], "duration_ms": 20}))
        told(await session.call("computer_type", {"text": "a\tü\n"}))
        told(await session.call("computer_key", {"keys": ["control", "s"], "repeat": 2}))
        told(await session.call("computer_pointer_down", {"x": 3, "y": 4}))
        where = told(await session.call("computer_pointer_position"))
        told(await session.call("computer_pointer_up", {}))
        told(await session.call("computer_keyboard_down", {"keys": ["a"], "hold_ms": 1}))
        told(await session.call("computer_keyboard_down", {"keys": ["Shift"]}))
        told(await session.call("computer_keyboard_up", {}))
        waited = told(await session.call("computer_wait", {"ms": 1, "screenshot": True}))
    assert (where["screen"], where["x"], where["inside_frame"], waited["waited_ms"]) == ({"x": 3, "y": 4}, 3, True, 1)
    assert computer.log == [
        ("click", 7, 8, "left", 1, ()),
        ("scroll", 1, 2, "down", 3),
        ("drag", (1, 1), (5, 5), (9, 9), "left", 20),
        ("type", "a\tü\n"),
        ("press", "Control", "s"),
        ("press", "Control", "s"),
        ("down", "left"),
        ("up", "left"),
        ("key_down", "a"),
        ("key_up", "a"),
        ("key_down", "Shift"),
        ("key_up", "Shift"),
    ]


async def test_others_input_is_counted_and_an_input_that_breaks_may_have_arrived() -> None:
    async with serve_here(Painted()) as client, client.session("ada") as ada, client.session("bob") as bob:
        await look(ada)
        told(await bob.call("computer_type", {"text": "x"}))
        told(await bob.call("computer_type", {"text": "y"}))
        assert told(await ada.call("computer_type", {"text": "z"}))["others_since_frame"] == 2
        broken = (await ada.call("computer_type", {"text": "unplugged"})).structured
        assert broken is not None
        assert (broken["code"], broken["applied"]) == ("delivery_failed", "unknown")


async def test_a_held_key_is_released_when_its_time_is_over() -> None:
    computer = Painted(Settings(max_hold_ms=1))
    async with serve_here(computer) as client, client.session() as session:
        told(await session.call("computer_keyboard_down", {"keys": ["Shift"]}))
        while ("key_up", "Shift") not in computer.log:
            await client.http.get(f"{client.base}/ready")
    assert computer.log == [("key_down", "Shift"), ("key_up", "Shift")]


async def test_a_display_that_changes_makes_frames_stale_and_only_its_modes_are_taken() -> None:
    async with serve_here(Painted()) as client, client.session() as session:
        frame, _ = await look(session)
        assert await uri(client, "display", "set", width=400, height=300) == {
            "width": 400,
            "height": 300,
            "scale": 1.0,
            "modes": [[320, 200], [400, 300]],
        }
        stale = (await session.call("computer_click", {"x": 1, "y": 1, "frame_id": frame})).structured
        assert stale is not None
        assert stale["code"] == "stale_frame"
        with pytest.raises(AgentEnvError, match="no mode of this display"):
            await uri(client, "display", "set", width=1, height=1)


async def test_the_default_space_is_what_tools_say_and_do() -> None:
    computer = Painted()
    async with serve_here(computer) as client, client.session() as session:
        await uri(client, "spaces", "set", default_space="norm", default_norm_scale=100)
        assert "a grid of 0 to 100" in (await client.tools())["computer_click"]["description"]
        await look(session)
        told(await session.call("computer_click", {"x": 50, "y": 50}))
        assert computer.log == [("click", 160, 100, "left", 1, ())]
        with pytest.raises(AgentEnvError) as refused:
            await uri(client, "spaces", "set", default_space="screen")
        assert refused.value.code == "invalid_argument"


async def test_commands_run_once_are_bounded_and_end_at_their_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    async with serve_here(Painted(Settings(exec_output_bytes=10))) as client:

        async def run(*argv: str, request_id: str, **more: Any) -> Any:
            return await client.invoke("urn:agentenv:computer-exec/v1", {"argv": list(argv), "request_id": request_id, **more})

        counted = ["sh", "-c", "echo x >>ran; wc -l <ran; echo $NAME >&2; exit 3"]
        first, second = await asyncio.gather(*[run(*counted, request_id="1", env={"NAME": "n"}) for _ in range(2)])
        expected = {"exit_code": 3, "stdout": "1\n", "stderr": "n\n", "truncated": False, "timed_out": False}
        assert first == second == await run(*counted, request_id="1") == expected
        long = await run("sh", "-c", "printf 0123456789abc", request_id="2")
        assert (long["stdout"], long["truncated"]) == ("0123456789", True)
        ended = await run("sh", "-c", "sleep 60 & sleep 60", request_id="3", timeout_s=0.2)
        assert (ended["timed_out"], ended["exit_code"]) == (True, None)
        for argv, code in ((["no-such-program"], "target_unavailable"), ([], "invalid_argument")):
            with pytest.raises(AgentEnvError) as refused:
                await run(*argv, request_id="4")
            assert refused.value.code == code


async def test_files_are_written_below_the_home_and_given_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "outside").mkdir()
    (home / "out").symlink_to(tmp_path / "outside")
    monkeypatch.setenv("HOME", str(home))

    def part(path: str) -> FilePart:
        content = base64.b64encode(b"hello").decode()
        return FilePart(file=FileBytes(bytes=content), metadata={"urn:agentenv:data-objects/v1": {"path": path}})

    async with serve_here(Painted(Settings(data_paths=["work"]))) as client:
        await client.add(part("work/a/b.txt"), part("other.txt"))
        assert [given.metadata for given in await client.get()] == [part("work/a/b.txt").metadata]
        for wrong in ("../up", "out/up", "/up"):
            with pytest.raises(RpcError):
                await client.add(part("work/new.txt"), part(wrong))
        with pytest.raises(RpcError, match="file parts that name their path"):
            await client.add({"a": 1})
    assert files(tmp_path) == ["b.txt", "other.txt"]


async def test_what_a_driver_lacks_is_not_offered_and_a_broken_capture_is_not_ready() -> None:
    async with serve_here(Blank()) as blank:
        assert {name.removeprefix("computer_") for name in await blank.tools()} == {
            "screenshot",
            "click",
            "drag",
            "scroll",
            "type",
            "key",
            "wait",
        }
        card = await blank.card()
        names = {extension.uri.split(":")[2].removesuffix("/v1") for extension in card.capabilities.extensions or []}
        assert {"computer", "computer-ready", "computer-display", "computer-spaces", "intake"} <= names
        assert not {"computer-pointer", "computer-keyboard", "computer-exec"} & names
        assert card.capabilities.operations == ["data/get"]
        status = await uri(blank, "ready", "status")
        assert (status["ready"], [check["ok"] for check in status["checks"]]) == (False, [True, False])
        unready = (await blank.call("computer_wait", {"ms": 0})).structured
        assert unready is not None
        assert (unready["code"], unready["applied"]) == ("device_unavailable", "no")
        with pytest.raises(LookupError, match="it has get"):
            await uri(blank, "display", "set", width=1, height=1)
        assert (await blank.http.post(f"{blank.base}/agentenv/ext/computer-display/set", json={})).status_code == 404


def test_a_driver_without_what_it_needs_says_what() -> None:
    class Half(ComputerDriver):
        display = Blank.display

    with pytest.raises(TypeError, match="Half lacks capture, click, drag, scroll, type_text, press"):
        Half()


def test_a_class_is_declared_where_its_own_packages_are_missing(tmp_path: Path) -> None:
    source = (ROOT / "tests/sdk/computers.py").read_text()
    (tmp_path / "painted.py").write_text(
        f"import a_package.that_is_missing as gone\n{source.replace('from __future__ import annotations', '')}"
    )
    command = [sys.executable, "-m", "agent_env_sdk.computer.declare", str(tmp_path), "painted.py"]
    done = subprocess.run([*command, "Painted"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    declared = json.loads(done.stdout)
    assert (declared["name"], len(declared["platforms"])) == ("painted", 2)
    first = declared["platforms"][0]
    assert first["platform"] == {"os": "linux", "arch": "amd64", "display": "x11"}
    assert "computer_pointer_move" in first["tools"]
    assert "urn:agentenv:computer-exec/v1" in first["provides"]
    assert first["features"]["buttons"] == ["left", "right"]
    wrong = subprocess.run([*command, "Nobody"], capture_output=True, text=True, timeout=60, check=False)
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "no class Nobody" in wrong.stderr


def test_settings_come_from_the_variable_and_wrong_ones_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTENV_COMPUTER_SETTINGS", '{"default_space": "norm"}')
    assert Painted(None, Platform("linux")).settings.default_space == "norm"
    monkeypatch.setenv("AGENTENV_COMPUTER_SETTINGS", '{"colour": "red"}')
    with pytest.raises(ValueError, match="AGENTENV_COMPUTER_SETTINGS holds no settings"):
        Painted()
