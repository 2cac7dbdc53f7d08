"""One configuration from variables, files and defaults, with origins, and every problem at once."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_env.config import KEYS, Config, load_config, state_root
from agent_env.config.keys import flatten
from agent_env.config.said import every_key, said_of
from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.documents.reading import parse_toml
from agent_env.errors import AgentEnvError, ConfigError, ProblemsError
from tests.sandboxes.people import in_child


@dataclass
class Place:
    """A home, a working tree below it, and what they hold."""

    root: Path

    @property
    def environ(self) -> dict[str, str]:
        return {"HOME": str(self.root / "home"), "AGENT_ENV_TRUST": str(self.tree)}

    @property
    def tree(self) -> Path:
        return self.root / "home/work"

    def user(self, text: str) -> Path:
        return self._write(self.root / "home/.config/agent-env/config.toml", text)

    def tree_file(self, text: str) -> Path:
        return self._write(self.tree / ".agentenv/config.toml", text)

    def _write(self, path: Path, text: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def load(self, **variables: str) -> Config:
        return load_config(self.tree / "deep/er", {**self.environ, **variables})


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    (made.tree / "deep/er").mkdir(parents=True)
    return made


def test_without_any_file_the_built_in_values_hold(place: Place) -> None:
    config = place.load()
    assert asdict(config.limits) == asdict(DEFAULT_LIMITS)
    assert config.state_root == place.root / "home/.local/state/agent-env"
    assert config.database_url == f"sqlite:///{config.state_root}/agent-env.db"
    assert (config.sandbox.default, config.sandbox.unsafe_host, config.synchronous, config.run.concurrency) == (
        "local",
        False,
        "NORMAL",
        None,
    )
    assert config.default_agent_id == "@local/agent-env/agents/mini"


def test_a_variable_beats_the_tree_which_beats_the_user(place: Place) -> None:
    user = place.user('[model]\ndefault = "user"\nbase_url = "https://u"\n[run]\nconcurrency = 3\n')
    tree = place.tree_file('[model]\ndefault = "tree"\n[run]\nconcurrency = 5\n')
    config = place.load(AGENT_ENV_CONCURRENCY="7")
    assert (config.run.concurrency, config.model.default, config.model.base_url) == (7, "tree", "https://u")
    explained = config.explain("run.concurrency")
    assert (explained.value, explained.source, explained.shadowed) == (7, "AGENT_ENV_CONCURRENCY", (str(tree), str(user)))
    assert config.explain("model.base_url").source == str(user)
    assert config.explain("sandbox.default").source == "built-in"


def test_the_named_file_is_the_only_one_and_must_exist(place: Place) -> None:
    place.user('[model]\ndefault = "user"\n')
    place.tree_file('[model]\ndefault = "tree"\n')
    (place.tree / "ci.toml").write_text("[run]\nconcurrency = 2\n")
    config = place.load(AGENT_ENV_CONFIG=str(place.tree / "ci.toml"))
    assert (config.run.concurrency, config.model.default) == (2, None)
    with pytest.raises(ConfigError, match="does not exist"):
        place.load(AGENT_ENV_CONFIG="/no/such.toml")


def test_tp02_given_as_the_default_is_told_from_not_given(place: Place) -> None:
    place.user('[sandbox]\ndefault = "local"\n')
    config = place.load()
    assert config.given("sandbox.default")
    assert not config.given("sandbox.agent_default")


@pytest.mark.parametrize("name", Limits.names())
def test_f09_every_limit_can_be_set_in_the_file_and_by_a_variable(place: Place, name: str) -> None:
    place.user(f"[limits]\n{name} = 7\n")
    assert getattr(place.load().limits, name) == 7
    assert getattr(place.load(**{f"AGENT_ENV_LIMIT_{name.upper()}": "9"}).limits, name) == 9
    assert place.load().explain(f"limits.{name}").value == 7


def test_every_table_of_the_reference_is_read(place: Place) -> None:
    place.user(
        """
[stores]
document = "local"
[stores.object]
impl = "pkg.mod:Class"
config = { bucket = "b" }
[runner]
impl = "pkg:Runner"
[model]
base_url = "https://m"
api_key = "secret:MODEL_KEY"
[model.roles]
judge = "big"
[model.params]
temperature = 0.5
[model.headers]
X-Team = "t"
[model.budget]
tokens = 1_000_000
cost_usd = 5
[model.prices]
"claude-*" = { input = 3, output = 15, cached_input = 0.3 }
[model.endpoints.direct]
base_url = "https://d/v1"
api_key = "env:DIRECT_KEY"
dialects = ["anthropic-messages"]
models = ["claude-*"]
[conversations]
default_human_a2a_url = "http://h"
[agents]
default_a2a_agent_id = "pi"
[sandbox]
default = "local,modal"
attribution = { team = "x" }
[sandbox.providers.modal]
config = { region = "eu" }
[state.providers.pg]
impl = "p:Q"
[envs]
impls = ["a:B"]
[task_steps]
impls = ["a:C"]
[artifacts]
impls = []
type_aliases = { old = "file" }
[explorer]
port = 9000
cors_origins = []
[plugins.my-plugin]
anything = [1, 2]
[database]
url = "postgresql://u:p@h/db"
synchronous = "FULL"
"""
    )
    config = place.load()
    assert [warning.path for warning in config.warnings] == [
        "$.stores.object",
        "$.runner",
        "$.sandbox.attribution",
        "$.state.providers.pg",
        "$.envs.impls",
        "$.artifacts.type_aliases",
        "$.explorer.port",
    ]
    assert all("read by nothing" in warning.message for warning in config.warnings)
    assert config.model.api_key == "secret:MODEL_KEY"
    assert config.model.roles == {"judge": "big"}
    assert (config.model.broker, config.model.budget["tokens"], config.model.endpoints["direct"]["base_url"]) == (
        True,
        1_000_000,
        "https://d/v1",
    )
    assert config.explain("model.budget").value == {"tokens": 1_000_000, "cost_usd": 5}
    assert config.section("stores")["object"] == {"impl": "pkg.mod:Class", "config": {"bucket": "b"}}
    assert config.sandbox.providers == {"modal": {"config": {"region": "eu"}}}
    assert config.get("plugins.my-plugin") == {"anything": [1, 2]}
    assert (config.default_agent_id, config.human_a2a_url, config.synchronous) == ("pi", "http://h", "FULL")


def test_the_references_variables_are_read(place: Place) -> None:
    config = place.load(LITELLM_BASE_URL="https://m", LITELLM_API_KEY="sk-1", AGENT_ENV_HUMAN_A2A_URL="http://h")
    assert (config.model.base_url, config.model.api_key, config.human_a2a_url) == ("https://m", "sk-1", "http://h")


def test_all_problems_of_all_files_and_variables_are_found_at_once(place: Place) -> None:
    user = place.user('[limits]\nexec_secons = 4\nexec_seconds = "a"\n[modle]\n[model]\napi_key = 3\nbogus = 1\n[run]\nconcurrency = 0\n')
    tree = place.tree_file('[sandbox]\ndefualt = "x"\nproviders = 3\n[sandbox.attribution]\nteam = 1\n[other]\nx = 1\n')
    with pytest.raises(ProblemsError) as error:
        place.load(AGENT_ENV_LIMIT_EXEC_SECOND="3", AGENT_ENV_CONCURRENCY="many", LITELLM_BASE_URL="m")
    assert {(problem.file, problem.path) for problem in error.value.problems} == {
        (str(user), "$.limits.exec_secons"),
        (str(user), "$.limits.exec_seconds"),
        (str(user), "$.modle"),
        (str(user), "$.model.api_key"),
        (str(user), "$.model.bogus"),
        (str(user), "$.run.concurrency"),
        (str(tree), "$.sandbox.defualt"),
        (str(tree), "$.sandbox.providers"),
        (str(tree), "$.sandbox.attribution"),
        ("variable AGENT_ENV_LIMIT_EXEC_SECOND", None),
        ("variable AGENT_ENV_CONCURRENCY", None),
        ("variable LITELLM_BASE_URL", None),
    }
    assert "did you mean 'exec_seconds'" in str(error.value)
    assert "did you mean 'model'" in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = = 1", "not valid TOML"),
        ("[limits]\nexec_seconds = -1", "number from 0"),
        ("[limits]\nsandbox_processes = 1.5", "whole number"),
        ("[limits]\nexec_seconds = true", "number from 0"),
        ("[limits]\nexec_seconds = nan", "finite"),
        ("limits = 3", "is a table"),
        ("[database]\nurl = 'mysql://h'", "sqlite://"),
        ("[database]\nsynchronous = 'OFF'", "NORMAL, FULL"),
        ("[model]\nbase_url = 'h'", "https://"),
        ("[model.params]\napi_key = 'x'", "can't set api_key"),
        ("[model.roles]\njudges = 'x'", "unknown role 'judges'; there are agent, user, judge"),
        ("[model.headers]\n'a b' = 'x'", "no valid header"),
        ('[model.headers]\nA = "x\\r\\nB: y"', "no valid header"),
        ("[model.budget]\nmoney = 3", "unknown key 'money'; it takes requests, tokens, cost_usd, concurrency"),
        ("[model.budget]\ntokens = 1.5", "tokens that is no whole number"),
        ("[model.judge_budget]\nconcurrency = 0", "no whole number from 1"),
        ("[model.prices]\nm = { input = 1 }", "price of 'm' that lacks output"),
        ("[model.prices]\nm = { input = -1, output = 2 }", "no number from 0"),
        ("[model.endpoints.x]\napi_key = 'k'", "lacks base_url"),
        ("[model.endpoints.x]\nbase_url = 'h'", "base_url that is a URL"),
        ("[model.endpoints.x]\nbase_url = 'https://h'\nkey = 'k'", "unknown key 'key'"),
        ("[model.endpoints.x]\nbase_url = 'https://h'\ndialects = ['openai']", "unknown dialect 'openai'"),
        ("[stores]\nobject = 'remote'", "local"),
        ("[stores.object]\nimpl = 'no-colon'", "module:Class"),
        ("[stores.object]\nimpl = 'a:B'\nbucket = 'x'", "unknown key 'bucket'"),
        ("[task_steps]\nimpls = 'a:B'", "list of"),
        ("[sandbox]\ndefault = 'env:NAME'", "the variable NAME is not set"),
        ("[sandbox]\ndefault = 'secret:NAME'", "can't be a secret"),
        ("[run]\nconcurrency = 'env:NAME?many'", "the variable NAME has it"),
        ("[explorer]\nport = 'env:NAME?70000'", "the variable NAME has it"),
        ("[sandbox]\nunsafe_host = 'yes'", "true or false"),
        ("[explorer]\nport = 70000", "port"),
        ('[database]\nurl = "sqlite:////tmp/a\\u0000b"', "control character"),
        ('[model]\nbase_url = "https://h\\u0007"', "control character"),
        ('[state]\nroot = "a\\u0000b"', "control character"),
        ('[sandbox]\ndefault = "lo\\ncal"', "control character"),
        ("a = " + "[" * 5000 + "]" * 5000, "deeper"),
        (".".join(["a"] * 500) + " = 1", "deeper"),
        ('a = "' + "x" * 9_000_000 + '"', "larger"),
        ("a = 1\n\0b = 2", "not valid TOML"),
        ("[run]\n[run.stores]\n", "did you mean \\[stores\\]"),
    ],
)
def test_each_malformed_file_is_refused_with_its_name(place: Place, text: str, said: str) -> None:
    file = place.user(text)
    with pytest.raises(ProblemsError, match=said) as error:
        place.load()
    assert all(problem.file == str(file) for problem in error.value.problems)


def test_any_text_of_a_file_may_be_that_of_a_variable(place: Place) -> None:
    place.user(
        "[sandbox]\ndefault = 'env:WHERE?local'\n[run]\nconcurrency = 'env:MANY'\n[limits]\nexec_seconds = 'env:LONG?1.5'\n"
        "[state]\nroot = 'env:STATE?below'\n"
    )
    config = place.load(MANY="3", WHERE="rootfs")
    assert (config.sandbox.default, config.run.concurrency, config.limits.exec_seconds) == ("rootfs", 3, 1.5)
    assert config.state_root.name == "below"
    assert config.state_root.is_absolute()
    assert place.load(MANY="3", WHERE="").sandbox.default == "local"
    with pytest.raises(ProblemsError, match=r"AGENT_ENV_SANDBOX.*can't be a reference"):
        place.load(MANY="3", AGENT_ENV_SANDBOX="env:WHERE")


def test_cl02_a_folder_or_pipe_in_the_files_place_is_named(place: Place) -> None:
    (place.tree / ".agentenv/config.toml").mkdir(parents=True)
    with pytest.raises(ProblemsError, match="is a folder"):
        place.load()
    (place.tree / ".agentenv/config.toml").rmdir()
    os.mkfifo(place.tree / ".agentenv/config.toml")
    with pytest.raises(ProblemsError, match="is a pipe"):
        place.load()


def test_an_unknown_table_is_kept_with_a_warning(place: Place) -> None:
    place.user("[my_other_tool]\nx = 1\n")
    assert [warning.path for warning in place.load().warnings] == ["$.my_other_tool"]


def test_what_asks_for_the_built_in_store_asks_for_nothing_that_is_not_done(place: Place) -> None:
    place.user('[stores]\nobject = "local"\n')
    assert place.load().warnings == ()


def test_variables_that_nothing_reads_are_warned_about_with_what_was_meant(place: Place) -> None:
    config = place.load(
        AGENT_ENV_SANBOX="rootfs",
        AGENT_ENV_EXPLORER_PORT="9",
        AGENT_ENV_OF_SOMEBODY_ELSE="x",
        AGENT_ENV_RUNNER="local",
        AGENT_ENV_LIMITS_EXEC_SECONDS="5",
    )
    assert [str(warning) for warning in config.warnings] == [
        "variable AGENT_ENV_EXPLORER_PORT: explorer.port is accepted, and read by nothing in this version of agent-env",
        "variable AGENT_ENV_LIMITS_EXEC_SECONDS: is read by nothing (did you mean AGENT_ENV_LIMIT_EXEC_SECONDS?)",
        "variable AGENT_ENV_SANBOX: is read by nothing (did you mean AGENT_ENV_SANDBOX?)",
    ]


def test_tp12_relative_paths_start_at_the_file_not_at_the_working_directory(place: Place) -> None:
    place.tree_file('[state]\nroot = "here"\n[database]\nurl = "sqlite:///data/runs.db"\n')
    for cwd in (place.tree, place.tree / "deep"):
        config = load_config(cwd, place.environ)
        assert config.state_root == place.tree / "here"
        assert config.database_url == f"sqlite:///{place.tree}/data/runs.db"


def test_tp12_the_state_falls_back_with_a_message_when_home_can_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".local").write_text("a file where a folder is needed")
    root, notes = state_root({"HOME": str(home), "TMPDIR": str(tmp_path)})
    assert root == tmp_path / f"agent-env-{os.getuid()}"
    assert root.stat().st_mode & 0o777 == 0o700
    assert "can't be written" in notes[0]
    root.chmod(0o755)
    with pytest.raises(ConfigError, match="not a private folder"):
        state_root({"HOME": str(home), "TMPDIR": str(tmp_path)})


def test_tp12_a_home_that_this_user_cannot_look_into_is_one_that_can_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    # Whoever runs the tests may have a home that can be looked into: the user database would name it.
    monkeypatch.setattr("pwd.getpwuid", lambda uid: SimpleNamespace(pw_dir=str(tmp_path / "closed/home")))
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o777)
        environ = {"HOME": str(tmp_path / "closed/home"), "TMPDIR": folder}
        root, notes = in_child(lambda: state_root(environ), ordinary=True)
        assert root.parent == Path(folder)
        assert "can't be written" in notes[0]
        assert "not looked at" not in notes[0]
        held = Path(folder, "state/agent-env")
        held.mkdir(parents=True)
        (held / "agent-env.db").touch()
        held.chmod(0o555)
        _, notes = in_child(lambda: state_root({"XDG_STATE_HOME": str(held.parent), "TMPDIR": folder}), ordinary=True)
        held.chmod(0o755)
    assert f"what {held} holds is not looked at" in notes[0]


def test_tp12_variables_move_the_state(tmp_path: Path) -> None:
    assert state_root({"XDG_STATE_HOME": str(tmp_path), "HOME": "/"}) == (tmp_path / "agent-env", ())
    assert state_root({"XDG_STATE_HOME": "relative", "HOME": str(tmp_path)}) == (tmp_path / ".local/state/agent-env", ())
    assert state_root({"AGENT_ENV_STATE_ROOT": str(tmp_path / "s")}) == (tmp_path / "s", ())
    (tmp_path / "file").touch()
    for wrong, why in (("relative", "an absolute path"), (str(tmp_path / "file/below"), f"{tmp_path}/file is no folder")):
        with pytest.raises(ConfigError, match=rf"AGENT_ENV_STATE_ROOT.*{why}") as told:
            state_root({"AGENT_ENV_STATE_ROOT": wrong})
        assert "set AGENT_ENV_STATE_ROOT to the absolute path of a folder that this user can write" in str(told.value.hint)


CANARY = "sk-canary-0123456789"


def test_c13_nothing_that_shows_the_configuration_shows_a_secret(place: Place) -> None:
    place.user(
        f'[model]\nbase_url = "https://u:{CANARY}@m"\napi_key = "{CANARY}"\n[model.headers]\nX-A = "{CANARY}"\n'
        f'[model.endpoints.e]\nbase_url = "https://u:{CANARY}@e"\napi_key = "{CANARY}"\nheaders = {{ X-B = "{CANARY}" }}\n'
        f'[stores.secret]\nimpl = "a:B"\nconfig = {{ password = "{CANARY}", nested = {{ token = "{CANARY}" }} }}\n'
        f'[database]\nurl = "env:DB?postgresql://u:{CANARY}@h/db"\n'
    )
    config = place.load()
    shown = f"{config!r} {config} {config.model!r} {config.describe()} {[config.explain(key) for key in config.values]}"
    assert CANARY not in shown
    assert "env:DB?***" in shown
    assert config.model.api_key == CANARY


def test_every_key_says_what_it_is_for() -> None:
    assert [key for key in every_key() if not said_of(key)] == []


def test_an_unknown_key_is_explained_with_a_near_one(place: Place) -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'run\.concurrency'"):
        place.load().explain("run.concurency")


def test_importing_the_configuration_loads_nothing_costly() -> None:
    costly = ("pydantic", "asyncio", "httpx", "sqlalchemy", "logging", "yaml")
    code = f"import agent_env.config, sys; print([m for m in {costly} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


WORDS = st.sampled_from(sorted({part for key in KEYS for part in key.split(".")} | {"limits", "exec_seconds", "x", "impl"}))
VALUES = st.recursive(
    st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from(["local", "env:A", "https://h", "a:B"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(WORDS, VALUES, max_size=4))
def test_any_table_ends_in_values_or_in_problems_with_file_and_path(table: dict[str, Any]) -> None:
    values, problems, warnings = flatten(table, source="config.toml", folder=Path("/w"))
    assert all(problem.file == "config.toml" and (problem.path or "").startswith("$") for problem in [*problems, *warnings])
    assert all(isinstance(key, str) for key in values)


@settings(max_examples=60)
@given(st.text(alphabet="[]=.\n \"'{}#1atmodelimsrunx", max_size=40))
def test_any_text_ends_in_a_configuration_or_in_an_error_of_ours(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    place = Place(tmp_path_factory.getbasetemp())
    (place.tree / "deep/er").mkdir(parents=True, exist_ok=True)
    place.user(text)
    try:
        place.load()
    except AgentEnvError as error:
        shown = str(error)
        named = str(place.root) in shown
        assert named


def test_documented_defaults_are_legal() -> None:
    assert all(rule.default is None or rule.check(rule.default) is None for rule in KEYS.values())
    assert parse_toml("", source="x") == {}
