"""What a URL is saved as, and where it may lead."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.artifacts.urls import admission_problem, bare_name, name_urls, plain_name_problem, shown_url
from agent_env.documents.network import NetworkMode, NetworkPolicy
from agent_env.errors import ProblemsError
from tests.documents.fuzzing import problems_of
from tests.documents.test_reading import JSON_VALUES


def names(*entries: Any) -> list[str]:
    return [named.filename for named in name_urls(list(entries))]


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://h/a/x.csv?v=2#f", "x.csv"),
        ("https://h/a%20b.csv", "a b.csv"),
        ("https://h/a%2Fb.csv", "b.csv"),
        ("https://h", "downloaded"),
        ("https://h/dir/", "downloaded"),
        ("https://h/a/..", "downloaded"),
        ("https://h/a%00b", "downloaded"),
        ("https://h/%E2%82%AC.txt", "€.txt"),
    ],
)
def test_a_bare_url_is_saved_under_the_last_segment_of_its_decoded_path(url: str, name: str) -> None:
    assert bare_name(url) == name


def test_repeats_get_numbers_before_the_extension() -> None:
    assert names(*["https://h/x.tar.gz"] * 3) == ["x.tar.gz", "x.tar-1.gz", "x.tar-2.gz"]
    assert names("https://h/x", "https://g/x", "https://h/x-1") == ["x", "x-1", "x-1-1"]
    assert names("https://h/.env", "https://g/.env") == [".env", ".env-1"]


def test_an_explicit_name_is_never_renamed_and_never_met_by_a_bare_one() -> None:
    assert names({"url": "https://h/d?id=1", "filename": "y.csv"}, {"url": "https://h/z.csv"}) == ["y.csv", "z.csv"]
    assert names("https://h/x", "https://g/x", {"url": "https://h/1", "filename": "x-1"}) == ["x", "x-2", "x-1"]
    with pytest.raises(ProblemsError, match=r"\$\.urls\[0\].*entry 1 asks for"):
        names("https://h/y.csv", {"url": "https://h/d", "filename": "y.csv"})


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (3, "a URL or"),
        ({}, "url is missing"),
        ({"url": 3}, "url is text"),
        ({"url": "https://h/x", "filename": "a/b"}, "slash"),
        ({"url": "https://h/x", "filename": ".."}, "names no file"),
        ({"url": "https://h/x", "filename": ""}, "names no file"),
        ({"url": "https://h/x", "filname": "b"}, "did you mean 'filename'"),
        ({"url": "https://h/x", "sha": "b"}, "unknown key"),
        ("ftp://h/x", "scheme 'ftp'"),
        ("file:///etc/passwd", "scheme 'file'"),
        ("https://", "malformed"),
        ("https://[::1/x", "malformed"),
        ("https://h:99999/x", "malformed"),
        ("https://h/a b", "malformed"),
        ("x.csv", "scheme"),
    ],
)
def test_each_malformed_entry_is_refused(entry: Any, said: str) -> None:
    with pytest.raises(ProblemsError, match=said):
        name_urls(["https://h/ok", entry], source="t.json", path="$[1].urls")


def test_two_explicit_names_that_are_equal_are_refused() -> None:
    with pytest.raises(ProblemsError, match="given twice"):
        names({"url": "https://h/1", "filename": "x"}, {"url": "https://h/2", "filename": "x"})


@given(
    st.lists(st.text(alphabet="htps:/.x%2F-1é", max_size=14).map(lambda text: f"https://h/{text}") | JSON_VALUES, max_size=5) | JSON_VALUES
)
def test_any_list_ends_in_distinct_plain_names_or_in_problems(entries: Any) -> None:
    named: list[str] = []
    found = problems_of(lambda: named.extend(entry.filename for entry in name_urls(entries, source="t.json")))
    assert all(problem.file == "t.json" and problem.path for problem in found)
    assert len(set(named)) == len(named)
    assert not any(plain_name_problem(name) for name in named)


def test_se03_a_url_is_shown_without_user_password_and_query() -> None:
    assert shown_url("https://u:p@h:8443/a?sig=SECRET#f") == "https://h:8443/a"
    assert "SECRET" not in shown_url("https://[bad?sig=SECRET")


ALLOWLIST = NetworkPolicy(mode=NetworkMode.ALLOWLIST, allow_hosts=("example.org", "*.data.org"), allow_cidrs=("10.0.0.0/8",))


@pytest.mark.parametrize(
    ("host", "addresses", "policy", "machine", "admitted"),
    [
        ("h", ["93.184.216.34"], None, False, True),
        ("h", ["127.0.0.1"], None, False, False),
        ("h", ["127.0.0.1"], None, True, True),
        ("h", ["169.254.169.254"], None, False, False),
        ("h", ["93.184.216.34", "::1"], None, False, False),
        ("h", ["::ffff:127.0.0.1"], None, False, False),
        ("h", ["fe80::1%eth0"], None, False, False),
        ("h", ["0.0.0.0"], None, False, False),
        ("h", ["10.1.2.3"], None, False, True),
        ("h", ["93.184.216.34"], NetworkPolicy(mode=NetworkMode.NONE), True, False),
        ("example.org", ["93.184.216.34"], ALLOWLIST, False, True),
        ("EXAMPLE.org.", ["93.184.216.34"], ALLOWLIST, False, True),
        ("a.data.org", ["93.184.216.34"], ALLOWLIST, False, True),
        ("data.org", ["93.184.216.34"], ALLOWLIST, False, False),
        ("notexample.org", ["93.184.216.34"], ALLOWLIST, False, False),
        ("inner", ["10.9.9.9"], ALLOWLIST, False, True),
        ("inner", ["10.9.9.9", "8.8.8.8"], ALLOWLIST, False, False),
        ("inner", [], ALLOWLIST, False, False),
        ("example.org", ["127.0.0.1"], ALLOWLIST, False, False),
    ],
)
def test_a_url_leads_only_where_the_sandbox_may_go(
    host: str, addresses: list[str], policy: NetworkPolicy | None, machine: bool, admitted: bool
) -> None:
    assert (admission_problem(host, addresses, policy, machine=machine) is None) == admitted
