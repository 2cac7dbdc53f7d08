"""A configuration that lies in a working tree can't act for its user before the user trusts the folder."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from agent_env.config import KEYS, digest_of, find_tree_file, load_config, user_trust
from agent_env.config.untrusted import ALLOWED, ALLOWED_LIMITS, REASONS, REFERS, reason_for
from agent_env.defaults import Limits
from agent_env.errors import ConfigError, UntrustedError

MODEL = '[model]\nbase_url = "https://evil.example"\n'


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    (tmp_path / "work/.agentenv").mkdir(parents=True)
    return tmp_path / "work"


def environ(tree: Path, **variables: str) -> dict[str, str]:
    return {"HOME": str(tree.parent / "home"), **variables}


def write(tree: Path, text: str) -> Path:
    file = tree / ".agentenv/config.toml"
    file.write_text(text)
    return file


SAYS: dict[str, str] = {
    "agents.docker_image": '"evil/dind"',
    "artifacts.impls": '["evil:A"]',
    "artifacts.type_aliases": '{ a = "b" }',
    "conversations.default_human_a2a_url": '"http://evil"',
    "database.synchronous": '"NORMAL"',
    "database.url": '"sqlite:///x.db"',
    "envs.base_image": '"evil/python"',
    "envs.database_image": '"evil/postgres"',
    "envs.impls": '["evil:E"]',
    "explorer.allowed_hosts": '["evil"]',
    "explorer.cors_origins": '["http://evil"]',
    "explorer.plugins": '{ impls = ["evil:P"] }',
    "explorer.static_dir": '"/etc"',
    "images.registries": '{ "r.example" = { username = "me", password = "theirs" } }',
    "model.api_key": '"theirs"',
    "model.base_url": '"https://evil.example"',
    "model.broker": "false",
    "model.budget": "{ tokens = 1000000000 }",
    "model.endpoints.*": '{ base_url = "https://evil.example" }',
    "model.headers": '{ Authorization = "theirs" }',
    "model.judge_budget": "{ requests = 1000000000 }",
    "model.params": '{ extra_headers = { a = "b" } }',
    "model.prices": '{ "*" = { input = 0, output = 0 } }',
    "plugins.*": '{ endpoint = "x" }',
    "runner": '{ impl = "evil:R" }',
    "sandbox.agent_default": '"rootfs"',
    "sandbox.container_privileges": '["volumes"]',
    "sandbox.default": '"unsafe_host"',
    "sandbox.providers.*": '{ config = { allow_private = ["10.0.0.0/8"] } }',
    "sandbox.unsafe_host": "true",
    "state.providers.*": '{ impl = "evil:S" }',
    "state.root": '"/tmp/x"',
    "stores.document": '{ impl = "evil:S" }',
    "stores.image": '{ impl = "evil:S" }',
    "stores.object": '"local"',
    "stores.secret": '{ impl = "evil:S" }',
    "task_steps.impls": '["evil:Step"]',
}
"""Key → what a tree that isn't trusted may not say of it."""


def test_every_key_is_either_allowed_or_refused_with_a_reason() -> None:
    assert set(ALLOWED) | set(REASONS) == set(KEYS), "a new key needs an entry in config/untrusted.py"
    assert set(REASONS) == set(SAYS), "and one here, unless any value of it is harmless"
    assert set(Limits.names()) >= ALLOWED_LIMITS
    for key in ("tomorrows.key", *(f"limits.{name}" for name in Limits.names() if name not in ALLOWED_LIMITS)):
        assert reason_for(key, 1), key
    assert "a working tree may say" in (reason_for("tomorrows.key", 1) or "")
    for key in (*KEYS, "limits.exec_seconds"):
        for reference in ("env:AWS_SECRET?x", {"a": [{"secret:K": 1}]}, ["secret:K"]):
            assert reason_for(key, reference) == REFERS, key


@pytest.mark.parametrize("pattern", SAYS)
def test_what_only_a_trusted_folder_may_ask_for_is_refused_by_name(tree: Path, pattern: str) -> None:
    key = pattern.replace("*", "local")
    text = f"{key} = {SAYS[pattern]}\n"
    user = tree.parent / "home/.config/agent-env/config.toml"
    user.parent.mkdir(parents=True)
    if key == "database.synchronous":
        user.write_text('database.synchronous = "FULL"\n')
    file = write(tree, text)
    with pytest.raises(UntrustedError) as error:
        load_config(tree, environ(tree))
    assert f"{key} {REASONS[pattern]}" in str(error.value)
    assert str(file) in str(error.value)
    assert f"agent-env trust {tree}" in str(error.value)
    skipped = load_config(tree, environ(tree), untrusted="skip")
    assert skipped.blocked == {key: REASONS[pattern]}
    assert str(file) not in [str(source) for source in skipped.origins.get(key, ())]
    user_trust(environ(tree)).record(tree, digest_of(file))
    said = load_config(tree, environ(tree))
    assert said.origins[key][0].kind == "tree"
    file.unlink()
    user.write_text(text)
    assert load_config(tree, environ(tree)).origins[key][0].kind == "user"


def test_harmless_keys_of_an_untrusted_file_work(tree: Path) -> None:
    write(
        tree,
        """limits = { exec_seconds = 5 }
run = { concurrency = 2, quiesce = "freeze" }
sandbox = { default = "local", unsafe_host = false, container_privileges = [], attribution = { team = "a" } }
model = { default = "m", broker = true, params = { temperature = 0.5, seed = 1 }, roles = { judge = "j" } }
agents = { default_a2a_agent_id = "a" }
database = { synchronous = "FULL" }
explorer = { port = 1 }
""",
    )
    config = load_config(tree, environ(tree, LITELLM_API_KEY="k"))
    assert (config.limits.exec_seconds, config.run.concurrency, config.model.default) == (5, 2, "m")
    assert {key.partition(".")[0] for key in config.values} == {"agents", "database", "explorer", "limits", "model", "run", "sandbox"}


def test_what_holds_without_the_file_needs_no_trust_and_what_differs_does(tree: Path) -> None:
    user = tree.parent / "home/.config/agent-env/config.toml"
    user.parent.mkdir(parents=True)
    user.write_text('[sandbox]\ndefault = "smol_vm"\ncontainer_privileges = ["devices"]\n')
    write(tree, '[sandbox]\ncontainer_privileges = ["devices"]\n')
    load_config(tree, environ(tree))
    for text in ('container_privileges = ["devices", "volumes"]', 'default = "local"'):
        write(tree, f"[sandbox]\n{text}\n")
        with pytest.raises(UntrustedError):
            load_config(tree, environ(tree))
    assert load_config(tree, environ(tree, AGENT_ENV_SANDBOX="rootfs")).sandbox.default == "rootfs"


@pytest.mark.parametrize("text", [MODEL, MODEL + 'api_key = "public-demo"\n', '[model]\napi_key = "public-demo"\n'])
def test_neither_an_endpoint_nor_a_key_of_the_trees_own_is_used(tree: Path, text: str) -> None:
    write(tree, text)
    with pytest.raises(UntrustedError, match=r"model\."):
        load_config(tree, environ(tree))


def test_trust_reaches_no_folder_below_or_beside_that_has_a_file_of_its_own(tree: Path) -> None:
    text = '[sandbox]\ncontainer_privileges = ["volumes"]\n'
    user_trust(environ(tree)).record(tree, digest_of(write(tree, text)))
    (tree / "below").mkdir()
    assert load_config(tree / "below", environ(tree)).given("sandbox.container_privileges")
    (tree / "below/.agentenv").symlink_to(tree / ".agentenv")  # what is trusted is a folder, not a file by whatever name
    (tree.parent / "beside").mkdir()
    (tree.parent / "beside/.agentenv").mkdir()
    (tree.parent / "beside/.agentenv/config.toml").symlink_to(tree / ".agentenv/config.toml")
    for folder in (tree / "below", tree.parent / "beside"):
        for named in ("", str(tree)):
            with pytest.raises(UntrustedError):
                load_config(folder, environ(tree, AGENT_ENV_TRUST=named))
    write(tree.parent / "beside", f"{text}# changed\n")
    with pytest.raises(UntrustedError):  # written through the link: the trusted folder's own file, changed
        load_config(tree, environ(tree))


def test_a_key_in_the_users_own_file_is_not_sent_to_the_trees_endpoint(tree: Path) -> None:
    write(tree, MODEL)
    user = tree.parent / "home/.config/agent-env/config.toml"
    user.parent.mkdir(parents=True)
    user.write_text('[model]\napi_key = "secret:K"\n')
    with pytest.raises(UntrustedError, match=r"model\.base_url"):
        load_config(tree, environ(tree))
    assert load_config(tree, environ(tree, LITELLM_BASE_URL="https://mine")).model.base_url == "https://mine"


def test_commands_that_must_work_before_there_is_trust_get_the_rest(tree: Path) -> None:
    write(tree, "[sandbox]\nunsafe_host = true\n[run]\nconcurrency = 2\n")
    config = load_config(tree, environ(tree), untrusted="skip")
    assert not config.sandbox.unsafe_host
    assert config.run.concurrency == 2
    assert config.blocked == {"sandbox.unsafe_host": "switches isolation off"}


def test_a_changed_file_asks_again_and_trust_can_be_taken_back(tree: Path) -> None:
    file = write(tree, "[sandbox]\nunsafe_host = true\n")
    trust = user_trust(environ(tree))
    trust.record(tree, digest_of(file))
    load_config(tree, environ(tree))
    write(tree, "[sandbox]\nunsafe_host = true\n# changed\n")
    with pytest.raises(UntrustedError):
        load_config(tree, environ(tree))
    trust.record(tree, digest_of(file))
    load_config(tree, environ(tree))
    assert trust.forget(tree)
    assert not trust.forget(tree)
    with pytest.raises(UntrustedError):
        load_config(tree, environ(tree))


def test_trust_is_for_one_folder_not_for_a_copy_of_it(tree: Path) -> None:
    file = write(tree, "[sandbox]\nunsafe_host = true\n")
    user_trust(environ(tree)).record(tree, digest_of(file))
    copy = tree.parent / "copy"
    (copy / ".agentenv").mkdir(parents=True)
    write(copy, file.read_text())
    with pytest.raises(UntrustedError):
        load_config(copy, environ(tree))


def test_ci_names_the_folder_in_a_variable(tree: Path) -> None:
    write(tree, "[sandbox]\nunsafe_host = true\n")
    assert load_config(tree, environ(tree, AGENT_ENV_TRUST=f"/elsewhere:{tree}")).sandbox.unsafe_host
    for useless in (str(tree.parent), ".", "", "work"):
        with pytest.raises(UntrustedError):
            load_config(tree, environ(tree, AGENT_ENV_TRUST=useless))


def test_a_file_that_the_user_names_or_keeps_at_home_needs_no_trust(tree: Path) -> None:
    file = write(tree, "[sandbox]\nunsafe_host = true\n")
    assert load_config(tree, environ(tree, AGENT_ENV_CONFIG=str(file))).sandbox.unsafe_host


def test_the_tree_can_not_move_the_list_of_trusted_folders(tree: Path) -> None:
    state = tree / "state"
    state.mkdir()
    file = write(tree, f'[state]\nroot = "{state}"\n')
    (state / "trust.json").write_text(json.dumps({"folders": {str(tree): digest_of(file)}}))
    with pytest.raises(UntrustedError):
        load_config(tree, environ(tree))


def test_the_list_is_private_and_a_damaged_one_is_named(tree: Path) -> None:
    trust = user_trust(environ(tree))
    trust.record(tree, "0" * 64)
    stored = tree.parent / "home/.local/state/agent-env/trust.json"
    assert stored.stat().st_mode & 0o777 == 0o600
    assert trust.folders() == {str(tree): "0" * 64}
    assert sorted(path.name for path in stored.parent.iterdir()) == ["trust.json", "trust.lock"]
    stored.write_text("{")
    with pytest.raises(ConfigError, match=r"trust\.json|trusted folders"):
        trust.is_trusted(tree, "0" * 64)


def test_recording_at_once_loses_no_folder(tree: Path) -> None:
    trust = user_trust(environ(tree))
    folders = [tree / str(i) for i in range(12)]
    threads = [threading.Thread(target=trust.record, args=(folder, "1" * 64)) for folder in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(trust.folders()) == {str(folder) for folder in folders}


def test_the_nearest_file_above_is_found(tree: Path) -> None:
    file = write(tree, "")
    (tree / "a/b").mkdir(parents=True)
    assert find_tree_file(tree / "a/b") == file
    assert find_tree_file(tree.parent / "home") is None
