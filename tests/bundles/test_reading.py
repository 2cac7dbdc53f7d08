"""Folders as they are found: what counts, what is left aside, what a bundle says about itself."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_env.bundles import BundleKind, find_bundle, installed_bundles, parse_bundle
from agent_env.bundles.parse import read_bundle
from agent_env.bundles.plan import plan_folder
from agent_env.engine.options import Stores
from agent_env.errors import NotFoundError, ProblemsError
from tests.bundles.building import BOX, CHECK, GOOD, LOAD, write


def test_a_bundle_is_read_with_its_kinds_types_and_ids(tmp_path: Path, home: Path) -> None:
    files = {
        **GOOD,
        "README.md": "---\ntitle: x\n---\n<img>\n# Words\n\nMore.\n",
        "artifacts/note/note.txt": "x",
        "artifacts/note/.DS_Store": "x",
        "artifacts/note/__pycache__/x.pyc": "x",
        "artifacts/image/Dockerfile": "FROM scratch",
        "artifacts/stray.txt": "x",
        "envs/mail/Dockerfile": "",
        "agents/solver/agent.toml": 'image = { ref = "docker.io/library/solver:1" }',
        "evals/all.toml": 'tasks = ["good"]',
        "aliases.toml": '[agents]\nsolver = ["s"]',
        "notes.txt": "x",
        ".git/config": "x",
    }
    bundle = parse_bundle(write(home / "words", files))
    found = {entry.path: (entry.kind, entry.type, entry.id) for entry in bundle.entries}
    root = "@local/~/words"
    assert found == {
        "envs/mail": (BundleKind.ENV, "mcp_server", f"{root}/mail"),
        "agents/solver": (BundleKind.AGENT, "a2a_agent", f"{root}/solver"),
        "artifacts/image": (BundleKind.ARTIFACT, "docker_image", f"{root}/image"),
        "artifacts/inputs": (BundleKind.ARTIFACT, "file_artifact_universe", f"{root}/inputs"),
        "artifacts/note": (BundleKind.ARTIFACT, "file", f"{root}/note"),
        "tasks/good.json": (BundleKind.TASK, "task", f"{root}/good"),
        "evals/all.toml": (BundleKind.EVAL, "eval", f"{root}/all"),
    }
    assert [entry.path for entry in bundle.entries] == list(found)
    assert bundle.description == "Words"
    assert bundle.ignored == ("artifacts/stray.txt", "notes.txt")
    assert bundle.aliases == {"agents": {"solver": ("s",)}}


@pytest.mark.parametrize(
    ("text", "description"),
    [
        ("# b\n\nOne sentence that\ngoes on. Another.\n\nMore.\n", "One sentence that goes on. Another."),
        ("Prose\n## Heading\n", "Prose"),
        ("# b\n", "b"),
        ("", None),
    ],
)
def test_a_bundle_is_described_by_the_first_paragraph_of_its_readme(tmp_path: Path, home: Path, text: str, description: str | None) -> None:
    assert parse_bundle(write(tmp_path / "b", {**GOOD, "README.md": text})).description == description


def test_bundle_toml_names_the_bundle_and_gives_defaults(tmp_path: Path, home: Path) -> None:
    text = 'name = "words"\ndescription = "About words"\n[defaults]\nagent = "a"\nmodel = "m"\nsandbox = "local"\n'
    bundle = parse_bundle(write(tmp_path / "b", {**GOOD, "bundle.toml": text}))
    assert (bundle.name, bundle.id_root, bundle.description) == ("words", "@local/words", "About words")
    assert (bundle.settings.agent, bundle.settings.model, bundle.settings.sandbox) == ("a", "m", "local")


def test_a_name_also_helps_where_the_path_could_not_be_an_id(tmp_path: Path, home: Path) -> None:
    root = write(tmp_path / "odd#[name]", GOOD)
    with pytest.raises(ProblemsError, match=r"bundle\.toml"):
        parse_bundle(root)
    write(root, {"bundle.toml": 'name = "fine"'})
    assert parse_bundle(root).id_root == "@local/fine"


def test_unknown_keys_are_kept_and_warned_about_and_refused_when_strict(tmp_path: Path, home: Path) -> None:
    root = write(tmp_path / "b", {**GOOD, "bundle.toml": "flavour = 1", "artifacts/inputs/artifact.toml": 'colour = "red"'})
    bundle = parse_bundle(root)
    assert [(warning.file, warning.path) for warning in bundle.warnings] == [
        ("bundle.toml", "$.flavour"),
        ("artifacts/inputs/artifact.toml", "$.colour"),
    ]
    assert next(entry for entry in bundle.entries if entry.name == "inputs").config == {"colour": "red"}
    with pytest.raises(ProblemsError) as raised:
        parse_bundle(root, strict=True)
    assert len(raised.value.problems) == 2


def test_links_inside_the_bundle_are_followed(tmp_path: Path, home: Path) -> None:
    root = write(
        tmp_path / "b",
        {**GOOD, "shared/data.txt": "x", "artifacts/inputs/link.txt": "->../../shared/data.txt", "artifacts/twin": "->../shared"},
    )
    files = {entry.name: sorted(entry.files) for entry in parse_bundle(root).of(BundleKind.ARTIFACT)}
    assert files == {"inputs": ["link.txt", "one.txt", "two.txt"], "twin": ["data.txt"]}


def test_the_root_itself_may_be_reached_through_a_link(tmp_path: Path, home: Path) -> None:
    write(tmp_path / "real", {**GOOD, "artifacts/inputs/link.txt": "->one.txt"})
    (tmp_path / "link").symlink_to("real")
    assert parse_bundle(tmp_path / "link").root == tmp_path / "real"


def test_special_files_are_told_and_never_opened(tmp_path: Path, home: Path) -> None:
    root = write(tmp_path / "b", GOOD)
    os.mkfifo(root / "artifacts/inputs/pipe")
    os.mkfifo(root / "tasks/pipe.json")
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(root)
        try:
            listener.bind("artifacts/inputs/socket")
        finally:
            os.chdir(here)
        problems = read_bundle(root).problems
    assert [(problem.file, problem.message) for problem in problems] == [
        (name, "neither a file nor a folder") for name in ("artifacts/inputs/pipe", "artifacts/inputs/socket", "tasks/pipe.json")
    ]


def test_a_name_that_is_no_utf8_is_told(tmp_path: Path, home: Path) -> None:
    root = write(tmp_path / "b", GOOD)
    (root / os.fsdecode(b"artifacts/inputs/\xff.txt")).write_text("x")
    assert [problem.message for problem in read_bundle(root).problems] == ["the name is not UTF-8"]
    str(ProblemsError(read_bundle(root).problems)).encode()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.write_text("x"), "is not a folder"),
        (lambda path: path.symlink_to(path), "can't be opened"),
    ],
)
def test_cl02_what_is_no_folder_is_told_with_the_path_as_typed(make: object, words: str, tmp_path: Path, home: Path) -> None:
    make(tmp_path / "b")  # type: ignore[operator]
    with pytest.raises(ProblemsError, match=words) as raised:
        parse_bundle(tmp_path / "b")
    assert raised.value.problems[0].file == str(tmp_path / "b")
    assert raised.value.exit_code == 2


def test_a_folder_beats_an_installed_name_and_a_spelled_folder_is_always_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hello = find_bundle("hello")
    assert (hello.id_root, hello.name) == ("@local/agent-env/hello", "hello")
    assert (hello.folder / "tasks/hello.json").is_file()
    assert find_bundle("./hello").id_root is None
    write(tmp_path / "hello", GOOD)
    found = find_bundle("hello")
    assert (found.folder, found.id_root) == (Path("hello"), None)
    assert found.note is not None


def test_an_unknown_name_is_told_with_near_ones() -> None:
    with pytest.raises(NotFoundError, match="did you mean 'hello'"):
        find_bundle("helo")


def test_installed_bundles_are_found_without_importing_them() -> None:
    found = {bundle.name: bundle for bundle in installed_bundles()}
    assert {"hello", "tour"} <= set(found)
    assert found["hello"].qualified == "agent-env/hello"
    assert found["hello"].description()


def test_the_shipped_bundles_have_no_problems(stores: Stores, home: Path) -> None:
    for installed in installed_bundles():
        plan = plan_folder(installed.folder, stores, everything=True, id_root=installed.id_root, name=installed.name, strict=True)
        assert plan.tasks


def test_only_what_the_selection_needs_is_planned_lc15(tmp_path: Path, stores: Stores, home: Path) -> None:
    files = {**GOOD, **{f"artifacts/a{number}/x": str(number) for number in range(20)}}
    files |= {f"tasks/t{number}.json": [BOX, {**LOAD, "artifact_id": f"a{number}"}, CHECK] for number in range(20)}
    plan = plan_folder(write(tmp_path / "b", files), stores, tasks=["t7"])
    assert [write.entry.path for write in plan.writes] == ["artifacts/a7", "tasks/t7.json"]


NAMES = st.one_of(
    st.sampled_from(
        [
            "tasks",
            "Tasks",
            "artifacts",
            "envs",
            "agents",
            "skills",
            "evals",
            "bundle.toml",
            "aliases.toml",
            "README.md",
            "a.json",
            "SKILL.md",
        ]
    ),
    st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
        lambda name: name not in {".", ".."} and len(name.encode()) < 200
    ),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["id", "type", "depends_on", "criteria", "sandbox_name", "artifact_id", "retry_config"]) | st.text(max_size=8),
            inner,
            max_size=6,
        )
    ),
    max_leaves=20,
)
STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.sampled_from(["a", "b"]) | JSON,
            "type": st.sampled_from(["deploy_sandbox", "verify_sandbox", "load_artifact", "run_code", "review", "deploy_env"]) | JSON,
        },
        optional={
            "depends_on": JSON,
            "sandbox_name": JSON,
            "criteria": JSON,
            "artifact_id": JSON,
            "artifacts": JSON,
            "retry_config": JSON,
            "sandbox_mode": JSON,
        },
    ),
    max_size=4,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    files=st.dictionaries(
        st.lists(NAMES, min_size=1, max_size=3).map("/".join),
        st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)),
        max_size=6,
    ),
    steps=st.one_of(STEPS, JSON),
    settings_text=st.one_of(st.none(), st.text(max_size=40), st.sampled_from(['name = "a"', "[defaults]\nmodel = 1", "name = 1"])),
)
def test_whatever_a_folder_holds_ends_in_a_plan_or_in_problems(
    files: dict[str, bytes], steps: object, settings_text: str | None, tmp_path_factory: pytest.TempPathFactory, stores: Stores
) -> None:
    root = tmp_path_factory.mktemp("fuzz")
    write(root, {"tasks/fuzzed.json": steps if isinstance(steps, list) else [steps]})
    for name, content in files.items():
        try:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content)
        except OSError:  # a name that is a folder already, or too long for this disk
            continue
    if settings_text is not None and not (root / "bundle.toml").exists():
        (root / "bundle.toml").write_text(settings_text, encoding="utf-8")
    told = ["nothing was wrong"]
    try:
        plan_folder(root, stores, everything=True, environ={"HOME": str(root.parent)})
    except ProblemsError as error:
        told = [str(problem) for problem in error.problems]
    assert told
    assert "\n".join(told).encode()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=200) | st.binary(max_size=200).map(lambda data: data.decode("latin-1")))
@pytest.mark.parametrize("file", ["evals/e.toml", "bundle.toml", "aliases.toml", "artifacts/inputs/artifact.toml", "skills/tidy/SKILL.md"])
def test_whatever_a_file_says_ends_in_problems_or_not_at_all(file: str, text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = write(tmp_path_factory.mktemp("fuzz"), GOOD)
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_bytes(text.encode("utf-8", "surrogatepass"))
    reading = read_bundle(root, environ={"HOME": str(root.parent)})
    assert all(problem.file for problem in reading.problems)


def test_a_folder_that_is_no_bundle_says_what_one_is_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/out").symlink_to("/")
    (tmp_path / "etc/broken").symlink_to("nowhere")
    with pytest.raises(ProblemsError) as error:
        read_bundle(tmp_path / "etc")
    (problem,) = error.value.problems
    assert "is not a bundle: it holds none of the folders" in problem.message
    assert "tasks/<name>.json" in (problem.hint or "")


def test_a_folder_beside_a_bundle_is_led_to_it(tmp_path: Path) -> None:
    write(tmp_path / "all/b", {"tasks/t.json": [], "artifacts/a/sub/f": "x"})
    for part in ("tasks", "artifacts/a", "artifacts/a/sub"):
        with pytest.raises(ProblemsError, match=f"part of the bundle '{tmp_path}/all/b'"):
            read_bundle(tmp_path / "all/b" / part)
    with pytest.raises(ProblemsError, match=f"holds bundles: '{tmp_path}/all/b'"):
        read_bundle(tmp_path / "all")
    (tmp_path / "all/c/Tasks").mkdir(parents=True)
    assert any("another spelling" in problem.message for problem in read_bundle(tmp_path / "all/c").problems)


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("input", "did you mean 'inputs'"),
        ("artifacts/inputs", "did you mean 'inputs'"),
        ("artifacts/inpust", "did you mean 'inputs'"),
        ("inputs/one.txt", "did you mean 'inputs'"),
        ("one.txt", "a file of 'inputs'"),
        ("something/else", "this bundle has inputs"),
    ],
)
def test_a_name_of_the_bundle_that_is_nearly_right_is_hinted_at(tmp_path: Path, stores: Stores, written: str, hint: str) -> None:
    steps = [BOX, {**LOAD, "artifact_id": written}, CHECK]
    with pytest.raises(ProblemsError) as error:
        plan_folder(write(tmp_path / "b", {**GOOD, "tasks/good.json": steps}), stores)
    (problem,) = error.value.problems
    assert (problem.file, problem.path) == ("tasks/good.json", "$[1].artifact_id")
    assert hint in (problem.hint or "")


@pytest.mark.parametrize(
    ("readme", "said"),
    [
        ("# b\n\nCounts words.\n", "Counts words."),
        ("# Words\n\nMore.\n", "Words"),
        ("# b\n", "b"),
        ("# b\n\n## b\n\n[![x](y)]\ntext", "text"),
    ],
)
def test_a_heading_that_only_repeats_the_name_is_no_description(tmp_path: Path, readme: str, said: str | None) -> None:
    assert parse_bundle(write(tmp_path / "b", {**GOOD, "README.md": readme})).description == said


UNKNOWN = {
    "bundle.toml": ('colour = "red"\n[defaults]\nflavour = "x"', {"$.colour", "$.defaults.flavour"}),
    "aliases.toml": ("[colours]\nx = 1", {"$.colours"}),
    "evals/e.toml": ('tasks = ["good"]\ncolour = 1', {"$.colour"}),
    "artifacts/inputs/artifact.toml": ("colour = 1", {"$.colour"}),
    "envs/mail/env.toml": ('image = { ref = "docker.io/x:1" }\ncolour = 1', {"$.colour"}),
    "agents/a/agent.toml": ('image = { ref = "docker.io/x:1" }\n[metadata]\ncolour = 1', {"$.metadata.colour"}),
    "skills/s/SKILL.md": ("---\nname: s\ndescription: d\ncolour: 1\n---\n", {"$.colour"}),
}


@pytest.mark.parametrize("file", UNKNOWN)
def test_an_unknown_key_is_warned_about_in_every_document_and_refused_when_strict(tmp_path: Path, file: str) -> None:
    text, paths = UNKNOWN[file]
    root = write(tmp_path / "b", {**GOOD, file: text})
    warnings = [warning for warning in parse_bundle(root).warnings if warning.file == file]
    assert {warning.path for warning in warnings} == paths
    with pytest.raises(ProblemsError) as error:
        parse_bundle(root, strict=True)
    assert {problem.path for problem in error.value.problems} == paths
