"""Ignore files mean what Docker's documentation and Docker itself say."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from agent_env.images.dockerignore import Ignore

# pattern lines, path, ignored. The first block is the table of Docker's documentation, the others moby's own test cases and its quirks.
CASES = [
    ("*/temp*", "somedir/temporary.txt", True),
    ("*/temp*", "somedir/temp/x", True),
    ("*/temp*", "a/b/temporary.txt", False),
    ("*/*/temp*", "somedir/subdir/temporary.txt", True),
    ("temp?", "tempa", True),
    ("temp?", "temp", False),
    ("temp?", "tempab", False),
    ("**/*.go", "x.go", True),
    ("**/*.go", "a/b/c/x.go", True),
    ("*.md\n!README.md", "README.md", False),
    ("*.md\n!README.md", "x.md", True),
    ("*.md\n!README*.md\nREADME-secret.md", "README-secret.md", True),
    ("*.md\nREADME-secret.md\n!README*.md", "README-secret.md", False),
    ("# comment\nx", "# comment", False),
    (" # x", "# x", True),
    ("\\#x", "#x", True),
    (".", "x", False),
    # anchored at the root, unlike Git
    ("*.pyc", "a/x.pyc", False),
    ("*.pyc", "x.pyc", True),
    ("build", "a/build", False),
    ("build", "build/deep/x", True),
    ("/foo", "foo", True),
    ("foo/", "foo/x", True),
    ("./foo", "foo", True),
    ("foo/../bar", "bar", True),
    ("x  \t", "x", True),
    ("  x", "x", True),
    ("! x\n", "x", False),
    ("x\n! x", "x", False),
    ("\ufeffx", "x", True),
    # **
    ("**", "a/b", True),
    ("**/", "a", True),
    ("a/**", "a/b/c", True),
    ("a/**", "a", False),
    ("a/**/b", "a/b", True),
    ("a/**/b", "a/x/y/b", True),
    ("a/**/b", "ab", False),
    ("**/build", "build", True),
    ("**/build", "x/build/y", True),
    ("**/build", "xbuild", False),
    ("**file", "dir/file", True),
    ("**/**/*.txt", "x.txt", True),
    ("a**/b", "axx/y/b", True),
    ("dir/**", "dirt/x", False),
    # everything, but
    ("*\n!src", "src/a/b", False),
    ("*\n!src", "lib/a", True),
    ("*\n!src\nsrc/secret", "src/secret/x", True),
    ("node_modules\n!**/keep", "node_modules/a/keep", False),
    ("**\n!a/b", "a/b/c", False),
    ("a/b\n!a", "a/b", False),
    # classes and escapes
    ("[a-c]x", "bx", True),
    ("[a-c]x", "dx", False),
    ("[^a-c]x", "dx", True),
    ("[^a-c]x", "ax", False),
    ("[!a]x", "!x", True),
    ("[!a]x", "bx", False),
    ("a\\*b", "a*b", True),
    ("a\\*b", "axb", False),
    ("a.b", "axb", False),
    ("a+(b)|$^{c}", "a+(b)|$^{c}", True),
    ("[\\]]", "]", True),
    ("a\nb c", "b c", True),
    ("é*", "été", True),
]


@pytest.mark.parametrize(("lines", "path", "ignored"), CASES)
def test_a_pattern_means_what_docker_says(lines: str, path: str, ignored: bool) -> None:
    ignore, problems = Ignore.parse(lines)
    assert problems == []
    assert ignore.ignores(path) is ignored


@pytest.mark.parametrize("line", ["[", "[]", "[]a]", "[a", "a\\", "!", "[b-a]", "[a-]", "[\\"])
def test_a_pattern_that_docker_refuses_is_a_problem_with_its_line(line: str) -> None:
    ignore, problems = Ignore.parse(f"# one\nx\n{line}\ny", file="sub/Dockerfile.dockerignore")
    assert [problem.file for problem in problems] == ["sub/Dockerfile.dockerignore:3"]
    assert ignore.ignores("x")
    assert ignore.ignores("y")


def test_ignored_folders_are_only_walked_where_something_may_be_taken_back() -> None:
    ignore, _ = Ignore.parse("big\nnode_modules\n!node_modules/keep/*.js\n")
    assert not ignore.may_take_back_below("big")
    assert ignore.may_take_back_below("node_modules")
    assert ignore.may_take_back_below("node_modules/keep")
    assert not ignore.may_take_back_below("node_modules/other")
    assert Ignore.parse("x\n!**/y")[0].may_take_back_below("x/a/b")


def buildkit_client() -> str:
    """A docker client that sends contexts to BuildKit by itself, without the plug-in that newer ones need."""
    for client in ("/usr/bin/docker", shutil.which("docker") or ""):
        if client and shutil.which(client):
            version = subprocess.run([client, "version", "-f", "{{.Client.Version}} {{.Server.Version}}"], capture_output=True, check=False)
            major = version.stdout.decode().partition(".")[0]
            if version.returncode == 0 and major.isdecimal() and int(major) < 23:
                return client
    pytest.skip("agentenv-capability-missing: buildkit_client")


# `!**/name` below an ignored folder is not here: clients of those years did not look there, newer ones do.
TREE = ["a.pyc", "src/b.pyc", "src/build/x", "build/y", "docs/README.md", "docs/a.md", "#notcomment", "trail ", "a*b", "axb", "[x]",
        "temp/a", "deep/er/temp", "deep/er/keep/me", ".env", "sub/.env", "dirt/x", "dir/x"]  # fmt: skip
ORACLE = (
    "# c\n*.pyc\n**/build\n/docs/*.md\n!docs/README.md\n \\#notcomment\ntrail  \na\\*b\n"
    "**/temp*\ndeep/**\n!deep/er/keep\n**/.env\ndir/**\n[[]x]\n"
)


def test_our_reading_of_a_context_is_the_one_of_docker_itself(tmp_path: Path) -> None:
    client = buildkit_client()
    for name in TREE:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / ".dockerignore").write_text(ORACLE)
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY . /\n")
    done = subprocess.run(
        [client, "build", "-q", "--output", "type=tar,dest=-", "."],
        cwd=tmp_path,
        env={**os.environ, "DOCKER_BUILDKIT": "1"},
        capture_output=True,
        check=True,
        timeout=60,
    )
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        theirs = {member.name for member in archive if member.isfile()}
    ignore, problems = Ignore.parse(ORACLE)
    assert problems == []
    assert {name for name in [*TREE, "Dockerfile", ".dockerignore"] if not ignore.ignores(name)} == theirs
