"""The secret store from the command line: values go in by standard input or a prompt, and nothing ever shows them again."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import AGENT_ENV, LONGEST, Cli
from tests.cli.test_completing import offered

VALUE = "canary-7c1d2e9f44"


def typed(cli: Cli, *argv: str, lines: list[str]) -> tuple[int, str]:
    """The command on a terminal, and what the terminal showed while these lines were typed."""
    leader, follower = pty.openpty()
    process = subprocess.Popen([AGENT_ENV, *argv], cwd=cli.cwd, env=cli.environ(), stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    shown, waiting = b"", list(lines)
    while select.select([leader], [], [], LONGEST)[0]:
        try:
            got = os.read(leader, 4096)
        except OSError:  # the other side was closed
            break
        if not got:
            break
        shown += got
        if waiting and got.rstrip().endswith(b":"):
            os.write(leader, waiting.pop(0).encode() + b"\n")
    os.close(leader)
    return process.wait(LONGEST), shown.decode()


def file_of(cli: Cli) -> Path:
    return cli.home / "state/agent-env/secrets.json"


@pytest.mark.parametrize("piped", [VALUE, f"{VALUE}\n", f"{VALUE}\r\n"])
def test_a_value_on_standard_input_is_stored_privately_without_its_line_end(cli: Cli, piped: str) -> None:
    answer = cli("secret", "set", "team/api-key", stdin=piped.encode())
    assert answer.code == 0
    assert VALUE not in answer.all
    assert json.loads(file_of(cli).read_text()) == {"team/api-key": VALUE}
    assert file_of(cli).stat().st_mode & 0o777 == 0o600


def test_only_the_last_line_end_is_left_out(cli: Cli) -> None:
    assert cli("secret", "set", "KEY", stdin=b"-----BEGIN-----\nabc\n\n").code == 0
    assert json.loads(file_of(cli).read_text())["KEY"] == "-----BEGIN-----\nabc\n"


def test_a_prompt_asks_twice_and_shows_nothing(cli: Cli) -> None:
    code, shown = typed(cli, "secret", "set", "KEY", lines=[VALUE, VALUE])
    assert code == 0, shown
    assert VALUE not in shown
    assert json.loads(file_of(cli).read_text()) == {"KEY": VALUE}


def test_a_value_is_no_argument_and_is_not_repeated(cli: Cli) -> None:
    answer = cli("secret", "set", "KEY", VALUE)
    assert answer.code == 2
    assert VALUE not in answer.all
    assert not file_of(cli).exists()


@pytest.mark.parametrize(
    ("name", "piped", "words"),
    [
        ("KEY", b"", "empty"),
        ("KEY", b"\n", "empty"),
        ("KEY", b"a\0b", "zero byte"),
        ("KEY", b"\xff\xfe", "UTF-8"),
        ("a b", b"x", "can't be the name"),
        ("kept/x", b"x", "moved out of documents"),
    ],
)
def test_what_can_not_be_stored_is_refused(cli: Cli, name: str, piped: bytes, words: str) -> None:
    answer = cli("secret", "set", name, stdin=piped)
    assert answer.code == 2
    assert words in answer.err
    assert not file_of(cli).exists()


def test_the_list_has_names_and_places_and_no_values(cli: Cli) -> None:
    assert cli("secret", "list", "--json").json == {"secrets": [], "asked_after": []}
    for name in ("b", "a"):
        cli("secret", "set", name, stdin=VALUE.encode())
    answer = cli("secret", "list")
    assert [row.split() for row in answer.out.splitlines()[1:]] == [["a", str(file_of(cli))], ["b", str(file_of(cli))]]
    assert cli("secret", "list", "--json").json["secrets"] == [{"name": name, "stored_in": str(file_of(cli))} for name in ("a", "b")]
    assert VALUE not in answer.all


def test_a_second_value_replaces_the_first_and_says_so(cli: Cli) -> None:
    assert cli("secret", "set", "KEY", "--json", stdin=b"one").json["new"] is True
    assert cli("secret", "set", "KEY", "--json", stdin=b"two").json["new"] is False
    assert json.loads(file_of(cli).read_text()) == {"KEY": "two"}


def test_keys_are_removed_all_or_none(cli: Cli) -> None:
    for name in ("one", "second"):
        cli("secret", "set", name, stdin=b"x")
    answer = cli("secret", "rm", "one", "seconf")
    assert answer.code != 0
    assert "did you mean 'second'?" in answer.err
    assert cli("secret", "rm", "one", "second", "--json").json == {"removed": ["one", "second"]}
    assert cli("secret", "list", "--json").json["secrets"] == []


def test_keys_are_completed(cli: Cli) -> None:
    assert offered(cli, "secret", "rm", "") == []
    for name in ("api-key", "other"):
        cli("secret", "set", name, stdin=b"x")
    assert offered(cli, "secret", "rm", "a") == ["api-key"]
    assert offered(cli, "secret", "rm", "other", "") == ["api-key"]
    assert offered(cli, "secret", "set", "o") == ["other"]
    assert "secret" in offered(cli, "sec")


def test_a_file_that_others_may_read_is_refused(cli: Cli) -> None:
    cli("secret", "set", "KEY", stdin=VALUE.encode())
    file_of(cli).chmod(0o644)
    answer = cli("secret", "list")
    assert answer.code != 0
    assert "chmod 600" in answer.err
    assert VALUE not in answer.all


def test_what_is_stored_is_what_a_reference_means(cli: Cli) -> None:
    cli("secret", "set", "db", stdin=f"sqlite:///{cli.cwd}/{VALUE}.db".encode())
    assert cli("runs", "list", "--json", env={"AGENT_ENV_DATABASE_URL": "secret:db"}).code == 0
    assert (cli.cwd / f"{VALUE}.db").exists()
