"""`agent-env model check`, and what `run` takes about models, as a person types them."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
from agent_env_sdk.testing.models import Fault, Scenario, Step, serve_models

from agent_env.cli import main
from agent_env.cli.models import budget_of
from agent_env.errors import UsageError

KEY = "scn-checked"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    for name in ("LITELLM_BASE_URL", "LITELLM_API_KEY", "AGENT_ENV_MODEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def configured(home: Path, text: str) -> None:
    folder = home / "XDG_CONFIG_HOME" / "agent-env"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(text)


def ran(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main([*words])
    told = capsys.readouterr()
    return code, told.out, told.err


async def ran_beside(*words: str) -> tuple[int | None, str, str]:
    """The command in a process of its own, while this one serves models."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "agent_env.cli", *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_each_dialect_of_a_configured_model_is_asked_and_what_it_took_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", KEY)
    async with serve_models({"checked": Scenario((Step("ok"),))}) as models:
        configured(
            home,
            f'[model]\nbase_url = "{models.base}"\napi_key = "env:MODEL_KEY"\ndefault = "m"\n'
            "[model.prices]\nm = { input = 1, output = 2 }\n",
        )
        code, out, err = await ran_beside("model", "check", "--json")
    assert code == 0, err
    found = json.loads(out)["models"]
    assert [each["dialect"] for each in found] == ["openai-chat", "openai-responses", "anthropic-messages", "gemini"]
    assert all(each["ok"] and (each["input_tokens"], each["output_tokens"]) == (10, 5) for each in found), found
    assert found[0]["cost_usd"] == pytest.approx(20e-6)
    assert KEY not in out + err


async def test_a_model_that_answers_in_no_dialect_is_named_with_why_and_without_its_key(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LITELLM_API_KEY", KEY)
    faults = (Fault("echo_key", status=403),)
    async with serve_models({"checked": Scenario((Step("ok", faults=faults),))}) as models:
        monkeypatch.setenv("LITELLM_BASE_URL", models.base)
        code, out, err = await ran_beside("model", "check", "--model", "m", "--dialect", "openai-chat")
    assert code == 1
    assert "m answers in no dialect" in out
    assert "status 403" in err
    assert "the key *** is refused" in err
    assert KEY not in out + err


def test_without_a_model_it_is_said_what_to_set(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = ran(capsys, "model", "check")
    assert code == 2
    assert "no model is configured" in err
    assert "LITELLM_BASE_URL" in err


def test_what_a_run_used_is_shown_also_when_it_asked_no_model(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ran(capsys, "run", "hello", "--json", "--budget", "requests=3")
    assert code == 0, err
    run_id = json.loads(out)["runs"][0]["run_id"]
    assert ran(capsys, "model", "usage", run_id) == (0, f"{run_id} asked no model\n", "")
    code, out, _ = ran(capsys, "model", "usage", run_id, "--json")
    assert (code, json.loads(out)["turns"], json.loads(out)["total"]["requests"]) == (0, [], 0)


def test_record_and_replay_exclude_each_other(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "kept").mkdir()
    code, _, err = ran(capsys, "run", "hello", "--record", "kept", "--replay", "kept")
    assert code == 2
    assert "--record and --replay exclude each other" in err


@pytest.mark.parametrize(
    ("words", "said"), [(("tokens",), "lacks a value"), (("tokens=x",), "no LIMIT=N"), (("dollars=3",), "unknown key 'dollars'")]
)
def test_a_budget_that_can_t_be_read_is_refused(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        budget_of(words)


def test_a_budget_is_read_as_it_is_written() -> None:
    assert budget_of(("tokens=1_000_000", "cost_usd=2.5", "requests=3")) == {"tokens": 1_000_000, "cost_usd": 2.5, "requests": 3}
