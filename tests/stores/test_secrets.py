"""Secrets: they resolve, and they show nowhere."""

from __future__ import annotations

import copy
import io
import json
import logging
import pickle
import subprocess
import sys
import threading
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_env.errors import AgentEnvError, ConfigError, NotFoundError, StorageError, UsageError
from agent_env.stores import InstallationKey, Secret, Secrets
from agent_env.stores.secrets import is_reference

CANARY = "canary-9f3k-secret-value"


@pytest.fixture
def secrets(tmp_path: Path) -> Secrets:
    return Secrets(tmp_path / "state" / "secrets.json", environ={"TOKEN": "from-env", "EMPTY": ""}, plugged={})


def test_references_resolve_from_the_environment_and_the_store(secrets: Secrets) -> None:
    secrets.put("API_KEY", "from-store")
    assert secrets.resolve("env:TOKEN").reveal() == "from-env"
    assert secrets.resolve("secret:API_KEY").reveal() == "from-store"
    assert secrets.resolve("env:EMPTY").reveal() == ""


@pytest.mark.parametrize(
    ("reference", "value"),
    [
        ("env:NONE?fallback", "fallback"),
        ("secret:NONE?", ""),
        ("env:NONE?a?b", "a?b"),
        ("env:TOKEN?unused", "from-env"),
        ("env:NONE?x\ny", "x\ny"),
    ],
)
def test_a_default_is_used_only_when_there_is_no_value(secrets: Secrets, reference: str, value: str) -> None:
    assert secrets.resolve(reference).reveal() == value


def test_a_missing_value_is_named_with_what_to_do(secrets: Secrets) -> None:
    with pytest.raises(NotFoundError, match=r"env:NONE has no value \(export NONE=…\)"):
        secrets.resolve("env:NONE")
    with pytest.raises(NotFoundError, match="secret:NONE has no value"):
        secrets.resolve("secret:NONE")


def test_text_that_is_no_reference_is_refused_without_repeating_it(secrets: Secrets) -> None:
    for text in (CANARY, "env:", "Env:X", "http://x"):
        assert not is_reference(text)
        with pytest.raises(UsageError) as raised:
            secrets.resolve(text)
        assert CANARY not in str(raised.value)


@dataclass
class Holder:
    name: str
    secret: Secret


def test_se03_a_secret_shows_in_no_form_of_output() -> None:
    secret = Secret(CANARY)
    log = io.StringIO()
    logger = logging.getLogger("se03")
    logger.addHandler(logging.StreamHandler(log))
    logger.warning("value %s %r", secret, [secret])
    shown = [
        repr(secret),
        str(secret),
        f"{secret} {secret!r} {secret:>30}",
        "%s" % secret,  # noqa: UP031 - the old way of formatting is one of the ways
        repr(Holder("a", secret)),
        repr(asdict(Holder("a", secret))),
        json.dumps({"k": secret}, default=str),
        repr(vars(Holder("a", copy.deepcopy(secret)))),
        log.getvalue(),
        str(hash(secret)),
    ]
    assert not [text for text in shown if CANARY in text]
    for refused in (lambda: pickle.dumps(secret), lambda: json.dumps(secret), lambda: secret + "x"):
        with pytest.raises(TypeError) as raised:
            refused()
        assert CANARY not in "".join(traceback.format_exception(raised.value))


def test_secrets_compare_by_value() -> None:
    assert Secret("a") == Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert {Secret("a"): 1}[Secret("a")] == 1
    assert not Secret("")


def test_every_value_is_announced_for_redaction_before_it_is_handed_out(tmp_path: Path) -> None:
    seen: list[str] = []
    secrets = Secrets(tmp_path / "s.json", environ={"A": "one"}, seen=seen.append, plugged={})
    secrets.put("B", "two")
    for reference in ("env:A", "secret:B", "env:C?three"):
        secrets.resolve(reference)
    assert seen == ["one", "two", "three"]


def test_the_file_is_private_lists_names_only_and_forgets(secrets: Secrets, tmp_path: Path) -> None:
    secrets.put("B", 'multi\nline "quoted" # value')
    secrets.put("A", CANARY)
    file = tmp_path / "state" / "secrets.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert secrets.names() == ["A", "B"]
    assert secrets.resolve("secret:B").reveal() == 'multi\nline "quoted" # value'
    assert secrets.delete("A")
    assert not secrets.delete("A")
    assert CANARY not in file.read_text()
    assert CANARY not in repr(secrets) + repr(vars(secrets))


def test_a_file_that_others_may_read_is_refused(secrets: Secrets, tmp_path: Path) -> None:
    secrets.put("A", CANARY)
    (tmp_path / "state" / "secrets.json").chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        secrets.resolve("secret:A")


@pytest.mark.parametrize("content", [b"{", b"[1]", b'{"a": 1}', b"\xff\xfe", b""])
def test_a_damaged_file_is_named_and_not_overwritten(secrets: Secrets, tmp_path: Path, content: bytes) -> None:
    secrets.put("A", "x")
    file = tmp_path / "state" / "secrets.json"
    file.write_bytes(content)
    for deed in (lambda: secrets.resolve("secret:A"), lambda: secrets.put("B", "y")):
        with pytest.raises(StorageError, match=r"secrets\.json is damaged"):
            deed()
    assert file.read_bytes() == content


def test_names_that_can_be_no_key_are_refused(secrets: Secrets) -> None:
    for name in ("", "a b", "a?b", "-x", "x" * 300, "new\nline"):
        with pytest.raises(UsageError, match="can't be the name"):
            secrets.put(name, "v")


def test_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    threads = [
        threading.Thread(target=lambda n=n: [Secrets(tmp_path / "s.json", plugged={}).put(f"K{n}_{i}", "v") for i in range(10)])
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Secrets(tmp_path / "s.json", plugged={}).names()) == 40
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_stores_of_plug_ins_are_asked_after_the_file(tmp_path: Path) -> None:
    class Vault:
        def get(self, name: str) -> str | None:
            return {"A": "vault-a", "B": "vault-b"}.get(name)

    secrets = Secrets(tmp_path / "s.json", plugged={"vault": Vault()})
    secrets.put("A", "file-a")
    assert [secrets.resolve(f"secret:{key}?none").reveal() for key in "ABC"] == ["file-a", "vault-b", "none"]


def test_installed_plug_ins_are_found_by_their_entry_point(tmp_path: Path) -> None:
    (tmp_path / "vault_plugin.py").write_text("class Vault:\n    def get(self, name):\n        return {'K': 'plugged'}.get(name)\n")
    facts = tmp_path / "vault_plugin-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: vault-plugin\nVersion: 1\n")
    (facts / "entry_points.txt").write_text("[agent_env.secret_stores]\nvault = vault_plugin:Vault\n")
    script = (
        "from pathlib import Path; from agent_env.stores import Secrets; print(Secrets(Path('none.json')).resolve('secret:K').reveal())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "plugged\n"


def test_derived_credentials_are_the_same_each_time_and_differ_by_run_name_and_installation(tmp_path: Path) -> None:
    key, again, other = InstallationKey(tmp_path / "a"), InstallationKey(tmp_path / "a"), InstallationKey(tmp_path / "b")
    token = key.derive("run-1", "box")
    assert len(token) == 64
    assert int(token, 16)
    assert again.derive("run-1", "box") == token
    assert (
        len({token, key.derive("run-2", "box"), key.derive("run-1", "other"), key.derive("run-1:", "box"), other.derive("run-1", "box")})
        == 5
    )
    assert (tmp_path / "a" / "installation.key").stat().st_mode & 0o777 == 0o600
    assert len((tmp_path / "a" / "installation.key").read_bytes()) == 32


@pytest.fixture(scope="module")
def shared_key(tmp_path_factory: pytest.TempPathFactory) -> InstallationKey:
    return InstallationKey(tmp_path_factory.mktemp("key"))


@settings(deadline=None)
@given(one=st.tuples(st.text("ab:1"), st.text("ab:1")), two=st.tuples(st.text("ab:1"), st.text("ab:1")))
def test_no_two_names_share_a_derived_credential(shared_key: InstallationKey, one: tuple[str, str], two: tuple[str, str]) -> None:
    key = shared_key
    assert (key.derive(*one) == key.derive(*two)) == (one == two)


def test_processes_that_start_at_once_agree_on_one_key(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from agent_env.stores import InstallationKey\n"
        "print(InstallationKey(Path(sys.argv[1])).derive('r', 'n'))"
    )
    racers = [subprocess.Popen([sys.executable, "-c", script, tmp_path / "new"], stdout=subprocess.PIPE, text=True) for _ in range(6)]
    assert len({racer.communicate(timeout=60)[0] for racer in racers}) == 1
    assert [path.name for path in (tmp_path / "new").glob("*.key*")] == ["installation.key"]


def test_a_damaged_or_unwritable_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "installation.key").write_bytes(b"short")
    with pytest.raises(StorageError, match=r"installation\.key is damaged"):
        InstallationKey(tmp_path).derive("r", "n")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(AgentEnvError, match="can't be read or made"):
        InstallationKey(tmp_path / "file").derive("r", "n")
