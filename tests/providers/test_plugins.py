"""Providers of other packages and of the configuration: found, guarded, and harmless when they are broken."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_env.config import load_config
from agent_env.engine.opening import providers_of
from agent_env.errors import ConfigError, UnsupportedError, UserError
from agent_env.sandboxes import names, provider
from agent_env.sandboxes.registry import GROUP
from tests.cli.conftest import Cli
from tests.providers.packages import PROVIDER, install


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    root = tmp_path / "packages"
    root.mkdir()
    monkeypatch.syspath_prepend(str(root))
    before = set(sys.modules)
    yield root
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(root)):
            del sys.modules[name]


def entry(name: str, value: str) -> dict[str, dict[str, str]]:
    return {GROUP: {name: value}}


def test_a_packages_provider_is_found_by_its_entry_point(packages: Path, tmp_path: Path) -> None:
    install(packages, "some-cloud", entries=entry("somebody", "some_cloud:Provider"), code=PROVIDER)
    assert "somebody" in names()
    found = provider("somebody", state_root=tmp_path)
    assert (found.name, type(found).__module__) == ("somebody", "some_cloud")


def test_a_provider_answers_to_the_name_that_it_was_asked_for_by(packages: Path, tmp_path: Path) -> None:
    install(packages, "some-cloud", entries=entry("other_name", "some_cloud:Provider"), code=PROVIDER)
    assert provider("other_name", state_root=tmp_path).name == "other_name"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise RuntimeError('boom')", "can't be loaded: boom"),
        ("import sys; sys.exit(3)", "can't be loaded: 3"),
        ("def broken(:", "can't be loaded: invalid syntax"),
        ("Provider = 7", "is no class"),
        ("class Provider: pass", "is no provider: it has no capabilities, problems, create"),
        ("", "has no attribute 'Provider'"),
    ],
    ids=["raises", "exits", "no Python", "no class", "no provider", "no attribute"],
)
def test_a_broken_package_says_what_is_wrong_and_breaks_nobody_else(packages: Path, tmp_path: Path, code: str, said: str) -> None:
    install(packages, "broken-cloud", entries=entry("broken", "broken_cloud:Provider"), code=code)
    install(packages, "some-cloud", entries=entry("somebody", "some_cloud:Provider"), code=PROVIDER)
    with pytest.raises((UnsupportedError, ConfigError), match=said) as caught:
        provider("broken", state_root=tmp_path)
    assert "'broken'" in str(caught.value)
    assert "broken" in names()
    assert provider("somebody", state_root=tmp_path).name == "somebody"
    assert provider("local", state_root=tmp_path).name == "local"


@pytest.mark.parametrize(
    ("value", "requires"),
    [("sdk_cloud:Provider [fast]", []), ("sdk_cloud:Provider", ['some-absent.sdk>=1; extra == "fast"'])],
    ids=["the entry point's extra", "the requirement's extra"],
)
def test_a_missing_kit_is_named_with_the_extra_that_brings_it(packages: Path, tmp_path: Path, value: str, requires: list[str]) -> None:
    install(packages, "sdk-cloud", entries=entry("sdk", value), code="import some_absent_sdk", requires=requires, extras=["fast"])
    with pytest.raises(UnsupportedError, match="some_absent_sdk") as caught:
        provider("sdk", state_root=tmp_path)
    assert caught.value.hint == "pip install 'sdk-cloud[fast]'"


def test_a_package_that_takes_a_built_in_name_is_not_used(packages: Path, tmp_path: Path) -> None:
    install(packages, "taker", entries=entry("local", "taker:Provider"), code=PROVIDER)
    assert type(provider("local", state_root=tmp_path)).__name__ == "LocalProvider"
    assert names().count("local") == 1


def test_two_packages_with_one_name_name_each_other_and_neither_is_used(packages: Path, tmp_path: Path) -> None:
    for name in ("one-cloud", "two-cloud"):
        install(packages, name, entries=entry("shared", f"{name.replace('-', '_')}:Provider"), code=PROVIDER)
    assert "shared" not in names()
    with pytest.raises(ConfigError, match="one-cloud and two-cloud both bring a provider 'shared'"):
        provider("shared", state_root=tmp_path)
    assert type(provider("shared", state_root=tmp_path, impl="two_cloud:Provider")).__module__ == "two_cloud"


def test_nothing_of_a_package_is_imported_until_its_provider_is_asked_for(packages: Path, tmp_path: Path) -> None:
    install(packages, "some-cloud", entries=entry("somebody", "some_cloud:Provider"), code=PROVIDER)
    names()
    provider("local", state_root=tmp_path)
    assert "some_cloud" not in sys.modules


def config_of(folder: Path, text: str) -> Any:
    (folder / "config.toml").write_text(text)
    environ = {"HOME": str(folder), "AGENT_ENV_CONFIG": str(folder / "config.toml"), "XDG_STATE_HOME": str(folder / "state")}
    return load_config(folder, environ)


def test_the_configuration_gives_a_new_name_with_an_impl_and_resolves_its_references(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = PROVIDER + (
        "\n    def __init__(self, state_root, *, limits, options):\n"
        "        super().__init__(state_root, limits=limits)\n        self.told = dict(options)\n"
    )
    install(packages, "some-cloud", entries={}, code=code)
    monkeypatch.setenv("CLOUD_KEY", "k-123")
    config = config_of(
        tmp_path,
        '[sandbox.providers.mine]\nimpl = "some_cloud:Provider"\n'
        '[sandbox.providers.mine.config]\nkey = "env:CLOUD_KEY"\nsizes = ["env:ABSENT?small", 3]\n',
    )
    seen: list[str] = []
    found: Any = providers_of(config, seen=seen.append)("mine")
    assert found.name == "mine"
    assert found.told == {"key": "k-123", "sizes": ["small", 3]}
    assert seen == ["k-123", "small"]


def test_a_built_in_provider_takes_options_and_no_impl(tmp_path: Path) -> None:
    config = config_of(tmp_path, '[sandbox.providers.local]\nimpl = "x:Y"\n')
    with pytest.raises(ConfigError, match="'local' is built in"):
        providers_of(config)("local")
    config = config_of(tmp_path, '[sandbox.providers.local.config]\nnetwork = "slow"\n')
    with pytest.raises(UserError, match="can't be 'slow'"):
        providers_of(config)("local")


def test_an_impl_that_is_not_there_is_named(tmp_path: Path) -> None:
    config = config_of(tmp_path, '[sandbox.providers.mine]\nimpl = "no_such_module:Class"\n')
    with pytest.raises(UnsupportedError, match=r"the impl 'no_such_module:Class' of \[sandbox.providers.mine\]"):
        providers_of(config)("mine")


@pytest.fixture
def broken_house(cli: Cli, tmp_path: Path) -> Cli:
    """A user with a broken package, a clash, a taken name, a group that nobody reads, and a sound one."""
    root = tmp_path / "site"
    root.mkdir()
    install(root, "broken-cloud", entries=entry("broken", "broken_cloud:Provider"), code="import sys; print('noise'); sys.exit(9)")
    install(root, "taker", entries=entry("local", "taker:Provider"), code="raise RuntimeError")
    install(root, "lost", entries={"agent_env.sandbox_provider": {"x": "lost:X"}})
    for name in ("one-cloud", "two-cloud"):
        install(root, name, entries=entry("shared", f"{name.replace('-', '_')}:Provider"))
    install(root, "some-cloud", entries=entry("somebody", "some_cloud:Provider"), code=PROVIDER)
    cli.env["PYTHONPATH"] = str(root)
    return cli


def test_the_inventory_says_of_each_package_whether_it_can_be_used(broken_house: Cli) -> None:
    done = broken_house("plugin", "list", "--json")
    told = {
        (package["package"], one["name"]): (one["status"], one["code"])
        for package in done.json["packages"]
        for one in package["contributions"]
    }
    assert done.json["format_version"] == 1
    assert told == {
        ("broken-cloud", "broken"): ("failed", "load-failed"),
        ("taker", "local"): ("skipped", "builtin-name"),
        ("lost", "x"): ("skipped", "unknown-group"),
        ("one-cloud", "shared"): ("conflict", "name-conflict"),
        ("two-cloud", "shared"): ("conflict", "name-conflict"),
        ("some-cloud", "somebody"): ("active", ""),
    }


def test_the_inventory_without_loading_imports_nothing(broken_house: Cli) -> None:
    done = broken_house("plugin", "list", "--no-load")
    assert "noise" not in done.all
    assert done.out.count("unloaded") == 2
    assert "did you mean 'agent_env.sandbox_providers'?" in done.out


def test_checking_plugins_fails_where_something_is_wrong_and_not_where_all_is_well(broken_house: Cli) -> None:
    everything = broken_house("plugin", "check")
    assert everything.code == 1
    assert "6 found, 5 can't be used" in everything.out
    sound = broken_house("plugin", "check", "some_cloud", "--json")
    assert (sound.code, sound.json["ok"]) == (0, True)
    shown = broken_house("plugin", "show", "some-cloud")
    assert "some-cloud 1.0: some-cloud for a test" in shown.out
    absent = broken_house("plugin", "show", "some-clod")
    assert (absent.code, "did you mean 'some-cloud'?" in absent.err) == (2, True)


def test_providers_are_listed_beside_a_broken_one(broken_house: Cli) -> None:
    rows = {row["name"]: row for row in broken_house("provider", "list", "--json").json["providers"]}
    assert rows["local"]["error"] is None
    assert rows["local"]["shape"] == "machine_backed"
    assert "can't be loaded" in rows["broken"]["error"]
    assert "shared" not in rows


def test_a_broken_package_keeps_no_command_from_starting(broken_house: Cli) -> None:
    for argv in (("--help",), ("runs", "list"), ("run", "hello", "--dry-run")):
        done = broken_house(*argv)
        assert (done.code, "noise" in done.all) == (0, False), done.all


def test_the_pytest_plugin_costs_other_peoples_tests_no_import() -> None:
    script = "import json, sys; import agent_env.sandboxes.conformance.fixtures; print(json.dumps([*sys.modules]))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, timeout=60)
    assert not {"pydantic", "httpx", "sqlalchemy", "agent_env.sandboxes.contract"} & set(json.loads(done.stdout))


def test_a_provider_check_of_an_unknown_case_or_provider_is_told_with_a_near_spelling(cli: Cli) -> None:
    case = cli("provider", "check", "local", "--case", "prots")
    assert (case.code, "no case matches 'prots'" in case.err) == (2, True)
    name = cli("provider", "check", "locl")
    assert (name.code, "did you mean 'local'?" in name.err) == (2, True)


def test_a_provider_check_that_could_check_nothing_asks_for_the_image(cli: Cli) -> None:
    done = cli("provider", "check", "local", "--mode", "container")
    assert (done.code, done.out) == (2, "")
    assert "--image" in done.err


def test_a_provider_check_runs_the_cases_that_are_named(cli: Cli) -> None:
    done = cli("provider", "check", "local", "--case", "EX-11", "--case", "life/an_unknown*", "--json")
    assert done.code == 0, done.all
    assert [case["id"] for case in done.json["cases"]] == ["life/an_unknown_sandbox_is_not_found", "commands/output_is_bytes"]
    listed = cli("provider", "check", "local", "--list", "--json")
    assert len(listed.json["cases"]) >= 80
