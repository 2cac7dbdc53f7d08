"""Ids: their grammar, what is derived from them, and that two never meet where they must not."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agent_env.errors import ProblemsError
from agent_env.ids import (
    MAX_AUTHORED_ID_BYTES,
    MAX_ID_BYTES,
    check_id,
    derive_id,
    fs_safe,
    home_folder,
    id_problem,
    key_segment,
    local_id_root,
    named_id_root,
    new_attempt_id,
    new_instance_id,
    new_run_id,
    new_sandbox_id,
    segment_problem,
)

IDS = st.text(min_size=1, max_size=30).filter(lambda id: id_problem(id) is None) | st.text(
    alphabet="abcé._-~/@ 1()", min_size=1, max_size=30
).map(lambda rest: f"@local/{rest}").filter(lambda id: id_problem(id) is None)


@pytest.mark.parametrize(
    "id", ["demo", "a b/c", "@local/~/hello/hello", "@local/tmp/x (1) + y, & z", "@local/наука/e\u0301", "local-thing", "日本"]
)
def test_legal_ids(id: str) -> None:
    assert check_id(id) == id


@pytest.mark.parametrize(
    ("id", "why"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("@other/x", "only '@local/"),
        ("@local", "only '@local/"),
        ("@local/", "names nothing"),
        ("@local/a//b", "names nothing"),
        ("@local/../b", "names nothing"),
        ("@local/./b", "names nothing"),
        ("@local/ a", "space"),
        ("@local/a /b", "space"),
        ("@local/a\u200bb", "can't have"),
        ("@local/a\u3164b", "invisible"),
        ("@local/a\ufe0f", "invisible"),
        ("@local/\u0301a", "combining"),
        ("@local/a:b", "can't have"),
        ("@local/a\nb", "can't have"),
        ("@local/" + "a" * MAX_ID_BYTES, "longer"),
        ("a\x00b", "control"),
        ("a\ud800", "surrogate"),
        ("local/x-0123456789ab", "stored form"),
        ("local-x-0123456789ab", "stored form"),
    ],
)
def test_illegal_ids_say_why(id: str, why: str) -> None:
    with pytest.raises(ProblemsError, match=re.escape(why)) as error:
        check_id(id, source="env.toml", path="$.id")
    assert (error.value.problems[0].file, error.value.problems[0].path) == ("env.toml", "$.id")


@given(st.text(max_size=40))
def test_any_text_is_an_id_or_has_a_reason(text: str) -> None:
    for id in (text, f"@local/{text}"):
        assert id_problem(id) is None or isinstance(id_problem(id), str)


@given(IDS, IDS)
def test_two_ids_never_share_a_key_or_a_file_name(a: str, b: str) -> None:
    assume(a != b)
    assert fs_safe(a) != fs_safe(b)
    assert key_segment(a) != key_segment(b)


@given(IDS)
def test_a_file_name_is_one_plain_short_segment(id: str) -> None:
    name = fs_safe(id)
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}", name)
    assert key_segment(id) == id or re.fullmatch(r"(local/)?[a-z0-9-]+-[0-9a-f]{12}", key_segment(id))


def test_keys_of_local_and_long_ids_are_short_and_stable() -> None:
    assert key_segment("@local/~/hello/hello") == "local/hello-hello-688d31b476e9"
    assert fs_safe("@local/~/hello/hello") == "local-hello-hello-688d31b476e9"
    assert key_segment("plain") == "plain"
    assert len(key_segment("x" * 201)) < 70


def test_the_longest_declared_id_can_still_be_derived_from() -> None:
    longest = "@local/" + "a" * (MAX_AUTHORED_ID_BYTES - len("@local/"))
    assert id_problem(derive_id(derive_id(longest, "files"), "0" * 14)) is None


def test_a_folder_below_home_is_named_from_home_and_another_from_the_root() -> None:
    home = Path("/home/ada")
    assert local_id_root(Path("/home/ada/jobs/mail"), home) == "@local/~/jobs/mail"
    assert local_id_root(Path("/srv/mail"), home) == "@local/srv/mail"
    assert local_id_root(Path("/home/adam/x"), home) == "@local/home/adam/x"
    assert local_id_root(home, home) == "@local/home/ada"
    assert local_id_root(Path("/srv/e\u0301"), None) == "@local/srv/\u00e9"


@pytest.mark.parametrize("path", ["/", "/srv/a:b", "/srv/ x", "/srv/a\u200b"])
def test_a_folder_that_can_be_no_id_is_refused_with_the_way_out(path: str) -> None:
    with pytest.raises(ProblemsError, match=r"bundle\.toml"):
        local_id_root(Path(path), None)


@given(st.text(alphabet="abé ._-~(1", min_size=1, max_size=12))
def test_a_legal_path_always_gives_a_legal_id(name: str) -> None:
    path = PurePosixPath("/srv") / name
    assume(path.name == name and segment_problem(unicodedata.normalize("NFC", name)) is None)
    assert id_problem(local_id_root(Path(path), None)) is None


def test_a_bundle_that_names_itself_has_an_identity_without_a_path() -> None:
    assert named_id_root("mail-tasks") == "@local/mail-tasks"
    for wrong in ("a/b", "~", "", "..", "a__b", "x:y"):
        with pytest.raises(ProblemsError, match="bundle name"):
            named_id_root(wrong, source="bundle.toml")


def test_home_is_the_variable_when_it_is_a_real_folder_else_the_user_database(tmp_path: Path) -> None:
    assert home_folder({"HOME": str(tmp_path)}) == tmp_path.resolve()
    from_database = home_folder({})
    for useless in ("relative", "/", "/no/such/folder", "/etc/passwd"):
        assert home_folder({"HOME": useless}) == from_database


def test_new_ids_have_their_shapes_and_do_not_repeat() -> None:
    assert re.fullmatch(r"@local/~/t-[a-z0-9]{8}", new_instance_id("@local/~/t"))
    assert re.fullmatch(r"local-[0-9a-f]{12}", new_sandbox_id("local"))
    made = {make() for make in (new_run_id, new_attempt_id) for _ in range(5000)}
    assert len(made) == 10_000
    assert all(re.fullmatch(r"(run|att)-[a-z0-9]{12,14}", id) for id in made)
    assert set("".join(id[4:] for id in made)) == set("0123456789abcdefghijklmnopqrstuvwxyz")
