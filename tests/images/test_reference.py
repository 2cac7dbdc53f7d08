"""Names of images and platforms are read as every docker client reads them, and printed back as they were."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.errors import UserError
from agent_env.images import ImageReference, Platform, context_name, normalize_platform
from agent_env.images.platforms import emulated_architectures
from agent_env.images.reference import is_loopback, reference_problem

DIGEST = "sha256:" + "0a" * 32

PARTS = {
    "alpine": (None, "alpine", None, None),
    "alpine:3.20": (None, "alpine", "3.20", None),
    f"alpine@{DIGEST}": (None, "alpine", None, DIGEST),
    "localhost/x": ("localhost", "x", None, None),
    "localhost:5000/team/x:1": ("localhost:5000", "team/x", "1", None),
    f"ghcr.io/a/b__c:v1@{DIGEST}": ("ghcr.io", "a/b__c", "v1", DIGEST),
    "[::1]:5000/x:1": ("[::1]:5000", "x", "1", None),
    "REG/x": ("REG", "x", None, None),
    "user/x": (None, "user/x", None, None),
    "local/my-env-0123456789ab:0123456789abcdef": (None, "local/my-env-0123456789ab", "0123456789abcdef", None),
}


@pytest.mark.parametrize("text", PARTS)
def test_a_name_falls_into_its_parts_and_back(text: str) -> None:
    read = ImageReference.parse(text)
    assert (read.registry, read.path, read.tag, read.digest) == PARTS[text]
    assert str(read) == text


@pytest.mark.parametrize("text", ["me:canary-5e0f@ghcr.io/x:1", "https://me:canary-5e0f@localhost:5000/x", "me:canary-5e0f@b@c/x"])
def test_se03_a_password_in_a_name_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(UserError, match=r"images\.registries") as refused:
        ImageReference.parse(text)
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "is empty"),
        (" x", "space"),
        ("Alpine", "capital letters"),
        ("x:", "the tag"),
        ("x:-a", "the tag"),
        ("x@sha256:12", "the digest"),
        ("a//b", "the path"),
        ("-a", "the path"),
        ("localhost:99999/x", "host"),
        ("ex_ample.com:5000/x", "host"),
        ("https://ghcr.io/x", "host"),
        ("a" * 256, "longer"),
        ("0a" * 32, "image id"),
        ("x\ny", "the path"),
        ("x y", "the path"),
    ],
)
def test_what_is_no_name_says_why(text: str, word: str) -> None:
    with pytest.raises(UserError, match=word):
        ImageReference.parse(text)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("alpine", "docker.io/library/alpine:latest"),
        ("docker.io/alpine:3", "docker.io/library/alpine:3"),
        ("index.docker.io/u/x", "docker.io/u/x:latest"),
        ("Ghcr.IO/a/b", "ghcr.io/a/b:latest"),
        (f"u/x@{DIGEST}", f"docker.io/u/x@{DIGEST}"),
        ("localhost:5000/x", "localhost:5000/x:latest"),
    ],
)
def test_names_of_the_same_image_are_normalised_to_one(text: str, normal: str) -> None:
    assert str(ImageReference.parse(text).normalised()) == normal
    assert ImageReference.parse(normal).normalised() == ImageReference.parse(normal)


words = st.from_regex(r"\A[a-z0-9]{1,6}([._-][a-z0-9]{1,6})?\Z")


@given(
    st.sampled_from([None, "localhost", "localhost:5000", "ghcr.io", "127.0.0.1:1", "a-b.example:65535"]),
    st.lists(words, min_size=1, max_size=4),
    st.none() | st.from_regex(r"\A[A-Za-z0-9_][A-Za-z0-9_.-]{0,12}\Z"),
    st.booleans(),
)
def test_any_name_survives_printing_and_reading(registry: str | None, path: list[str], tag: str | None, pinned: bool) -> None:
    made = ImageReference("/".join(path), registry, tag, DIGEST if pinned else None)
    assert ImageReference.parse(str(made)) == made or (registry is None and "." in path[0] and len(path) > 1)


@given(st.text(max_size=40))
def test_no_text_breaks_the_reader(text: str) -> None:
    if reference_problem(text) is None:
        assert str(ImageReference.parse(text)) == text
    else:
        with pytest.raises(UserError):
            ImageReference.parse(text)


def test_an_image_that_is_only_a_context_is_named_by_its_id_and_sources() -> None:
    name = context_name("@local/~/My Envs/shop__env_image", "0123456789abcdef" * 4)
    assert name.context_only
    assert name.registry is None
    assert name.tag == "0123456789abcdef"
    assert name.path.startswith("local/my-envs-shop-env-image-")
    assert context_name("shop", "ab" * 32).path == context_name("@local/shop", "ab" * 32).path
    assert ImageReference.parse(str(name)) == name


@pytest.mark.parametrize(
    ("registry", "loopback"),
    [("localhost", True), ("localhost:5000", True), ("127.1.2.3:5000", True), ("[::1]:5", True), ("x.localhost:1", True),
     ("ghcr.io", False), ("10.0.0.1:5000", False), ("localhost.example.com", False)],
)  # fmt: skip
def test_only_this_machines_registries_are_loopback(registry: str, loopback: bool) -> None:
    assert is_loopback(registry) is loopback


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("linux/amd64", "linux/amd64"),
        ("Linux/X86_64", "linux/amd64"),
        ("linux/aarch64", "linux/arm64"),
        ("linux/arm64/v8", "linux/arm64"),
        ("linux/arm/v7", "linux/arm/v7"),
        ("linux/i386", "linux/386"),
        ("arm64", "linux/arm64"),
        (None, None),
    ],
)
def test_a_platform_has_one_spelling(text: str | None, normal: str | None) -> None:
    assert normalize_platform(text) == normal


@pytest.mark.parametrize("text", ["", "linux/", "a/b/c/d", "linux amd64", "../x"])
def test_what_is_no_platform_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        normalize_platform(text)


def test_a_machine_runs_its_own_platform_its_smaller_sibling_and_what_it_emulates(tmp_path) -> None:
    host = Platform("linux", "amd64")
    assert Platform("linux", "386").runs_on(host)
    assert not Platform("linux", "arm64").runs_on(host)
    assert Platform("linux", "arm64").runs_on(host, {"arm64"})
    assert not Platform("windows", "amd64").runs_on(host)
    (tmp_path / "qemu-aarch64").write_text("enabled\ninterpreter /usr/bin/qemu-aarch64-static\n")
    (tmp_path / "qemu-arm").write_text("disabled\n")
    assert emulated_architectures(tmp_path) == {"arm64"}
    assert emulated_architectures(tmp_path / "absent") == frozenset()
