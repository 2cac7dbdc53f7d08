"""Bundles with something wrong in them, and what must be said about it: the file, the place in the file, and words that explain it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.bundles.building import BOX, CHECK, GOOD, LOAD, Content


@dataclass(frozen=True)
class Said:
    """One problem that must be told."""

    file: str
    path: str | None
    words: tuple[str, ...]


@dataclass(frozen=True)
class Malformed:
    """A folder, and everything that is wrong with it."""

    name: str
    files: dict[str, Content]
    said: tuple[Said, ...]


def case(name: str, files: dict[str, Content], *said: tuple[str, str | None, str], good: bool = True) -> Malformed:
    """A good bundle with these files beside, or instead of, its own."""
    return Malformed(
        name, {**GOOD, **files} if good else files, tuple(Said(file, path, tuple(words.split("|"))) for file, path, words in said)
    )


def task(name: str, steps: Any, *said: tuple[str | None, str]) -> Malformed:
    """A bundle whose task `bad` has these steps."""
    return case(f"task: {name}", {"tasks/bad.json": steps}, *(("tasks/bad.json", path, words) for path, words in said))


def toml(name: str, file: str, text: str, *said: tuple[str | None, str], beside: dict[str, Content] | None = None) -> Malformed:
    """A bundle with one toml that is wrong."""
    return case(f"toml: {name}", {file: text, **(beside or {})}, *((file, path, words) for path, words in said))


def changed(step: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A step with other fields; None removes one."""
    return {key: value for key, value in {**step, **fields}.items() if value is not None}


_SKILL = "---\nname: tidy\ndescription: Tidies.\n---\nText.\n"

LAYOUT = [
    case("a folder without any kind folder", {"notes.txt": "x"}, ("", None, "is not a bundle|tasks"), good=False),
    case("a kind folder in another case", {"Tasks/x.json": "[]"}, ("Tasks", None, "another spelling of 'tasks'|rename"), good=False),
    case("a kind folder twice in different cases", {"Artifacts/x/y": "1"}, ("Artifacts", None, "beside the 'artifacts'")),
    case("a kind folder that is a file", {"envs": "x"}, ("envs", None, "is not a folder")),
    case("bundle.toml in another case", {"Bundle.toml": ""}, ("Bundle.toml", None, "another spelling")),
    case("aliases.toml that is a folder", {"aliases.toml": None}, ("aliases.toml", None, "is not a file")),
    case("a folder among the tasks", {"tasks/more/x.json": "[]"}, ("tasks/more", None, "is a folder|without sub-folders")),
    case("a task with its ending in another case", {"tasks/x.JSON": "[]"}, ("tasks/x.JSON", None, "ending")),
    case("two artifacts that differ in case", {"artifacts/Inputs/a": "1"}, ("artifacts/inputs", None, "differs|case")),
    case(
        "an artifact and a skill of one name",
        {"skills/inputs/SKILL.md": _SKILL.replace("tidy", "inputs")},
        ("skills/inputs", None, "shares"),
    ),
    case("a broken link", {"artifacts/inputs/l": "->nowhere"}, ("artifacts/inputs/l", None, "link that leads nowhere")),
    case("a link out of the bundle", {"artifacts/inputs/l": "->/etc/hostname"}, ("artifacts/inputs/l", None, "leads out of the bundle")),
    case("a link to an ancestor", {"artifacts/inputs/l": "->.."}, ("artifacts/inputs/l", None, "never end")),
    case("a link to itself", {"tasks/self.json": "->self.json"}, ("tasks/self.json", None, "circle")),
    case("a task outside behind a link", {"tasks/out.json": "->/etc/passwd"}, ("tasks/out.json", None, "leads out")),
    case("an empty artifact", {"artifacts/none": None}, ("artifacts/none", None, "holds no files")),
    case("an artifact of leavings only", {"artifacts/none/.DS_Store": "x"}, ("artifacts/none", None, "holds no files")),
    case("a derived name", {"artifacts/a__b/x": "1"}, ("artifacts/a__b", None, "kept for derived ids")),
    case("a name that no id can have", {"artifacts/a#b/x": "1"}, ("artifacts/a#b", None, "can't be part of an id")),
    case(
        "two names that are one once composed",
        {"artifacts/u/e\u0301": "1", "artifacts/u/\u00e9": "2"},
        ("artifacts/u/\u00e9", None, "composed"),
    ),
    case("an environment without files", {"envs/mail/readme": "x"}, ("envs/mail", None, "neither Dockerfile nor env.toml")),
    case("an agent without files", {"agents/solver/x": "x"}, ("agents/solver", None, "neither Dockerfile nor agent.toml")),
    case("a skill without SKILL.md", {"skills/tidy/skill.md": _SKILL}, ("skills/tidy", None, "has no SKILL.md|rename")),
    case("a skill among the artifacts", {"artifacts/tidy/SKILL.md": _SKILL}, ("artifacts/tidy", None, "is a skill|skills/tidy")),
    case("a skill of another name", {"skills/other/SKILL.md": _SKILL}, ("skills/other/SKILL.md", "$.name", "tidy|other")),
    case("a skill without frontmatter", {"skills/tidy/SKILL.md": "text"}, ("skills/tidy/SKILL.md", None, "frontmatter")),
    case("nothing to run", {"artifacts/a/x": "1"}, ("", None, "no tasks or evals to run"), good=False),
]

TOMLS = [
    toml("no TOML", "bundle.toml", "name = ", (None, "is not valid TOML|end of document")),
    toml("no UTF-8", "bundle.toml", "\0", (None, "TOML")),
    toml("a near spelling in bundle.toml", "bundle.toml", 'nmae = "x"', ("$.nmae", "unknown key|'name'")),
    toml("a bundle name that is no text", "bundle.toml", "name = 3", ("$.name", "text")),
    toml("a bundle name with a slash", "bundle.toml", 'name = "a/b"', ("$.name", "more than one segment")),
    toml("defaults that are no table", "bundle.toml", "defaults = 1", ("$.defaults", "is a table")),
    toml("a default that is no text", "bundle.toml", "[defaults]\nsandbox = 1", ("$.defaults.sandbox", "text")),
    toml("an unknown default", "bundle.toml", '[defaults]\nsandbx = "x"', ("$.defaults.sandbx", "'sandbox'")),
    toml("an unknown alias table", "aliases.toml", "[agent]\n", ("$.agent", "'agents'")),
    toml(
        "an alias in upper case",
        "aliases.toml",
        '[envs]\nmail = ["MAIL"]',
        ("$.envs.mail[0]", "no alias"),
        beside={"envs/mail/Dockerfile": ""},
    ),
    toml("an alias of nothing", "aliases.toml", '[envs]\nmail = ["m"]', ("$.envs.mail", "there is no envs/mail")),
    toml("an alias twice", "aliases.toml", '[envs]\nmail = ["m", "m"]', ("$.envs.mail[1]", "twice"), beside={"envs/mail/Dockerfile": ""}),
    toml("a type that is no text", "artifacts/a/artifact.toml", "type = 1", ("$.type", "type is a text"), beside={"artifacts/a/x": "1"}),
    toml(
        "a type that is unknown",
        "artifacts/a/artifact.toml",
        'type = "fil"',
        ("$.type", "no type of artifact"),
        beside={"artifacts/a/x": "1"},
    ),
    toml("a bare id", "artifacts/a/artifact.toml", 'id = "shared"', ("$.id", "shared store|@local/"), beside={"artifacts/a/x": "1"}),
    toml("an id with a bad segment", "artifacts/a/artifact.toml", 'id = "@local/a//b"', ("$.id", "segment"), beside={"artifacts/a/x": "1"}),
    toml("a near key", "artifacts/a/artifact.toml", 'descripton = "x"', ("$.descripton", "'description'"), beside={"artifacts/a/x": "1"}),
    toml(
        "a stored key",
        "artifacts/a/artifact.toml",
        'type = "environment"\nservice_name = "m"',
        ("$.service_name", "stored document's key|environment_name"),
        (None, "'environment_name' is missing"),
        beside={"artifacts/a/x": "1"},
    ),
    toml(
        "an eval with several broken entries",
        "evals/e.toml",
        'tasks = ["good", { task = "x", version = 0 }, 3]',
        ("$.tasks[1]", "version that is a whole number from 1"),
        ("$.tasks[2]", "name or id"),
    ),
    toml(
        "variables that are no text",
        "agents/solver/agent.toml",
        "[default_env_vars]\nA = 1\nB = 'x'",
        ("$.default_env_vars.A", "A is text, not 1"),
        beside={"agents/solver/Dockerfile": "FROM scratch"},
    ),
    toml(
        "a cli without its entry point",
        "artifacts/a/artifact.toml",
        'type = "cli"\ncommand_name = "x"',
        (None, "'entrypoint' is missing"),
        beside={"artifacts/a/x": "1"},
    ),
    toml(
        "a cli whose entry point is not there",
        "artifacts/a/artifact.toml",
        'type = "cli"\ncommand_name = "x"\nentrypoint = "y"',
        ("$.entrypoint", "no file"),
        beside={"artifacts/a/x": "1"},
    ),
    toml(
        "an image without registry", "artifacts/a/artifact.toml", 'type = "docker_image"\nref = "alpine"', ("$.ref", "names its registry")
    ),
    toml(
        "an agent's metadata",
        "agents/s/agent.toml",
        'image = { ref = "a.b/c:1" }\n[metadata]\ndefault_modl = "x"\ntakes_credentials = 1',
        ("$.metadata.default_modl", "unknown key"),
        ("$.metadata.takes_credentials", "true or false"),
    ),
    toml("a multi environment of nothing", "envs/m/env.toml", 'type = "multi"', (None, "at least one")),
    toml("an image key with two forms", "envs/m/env.toml", 'image = { dockerfile = "a", ref = "b.c/d" }', ("$.image", "dockerfile|ref")),
    toml("an eval without tasks", "evals/e.toml", "", (None, "'tasks' is missing")),
    toml("an eval of an empty list", "evals/e.toml", "tasks = []", ("$.tasks", "at least one task")),
    toml("an eval that lists a task twice", "evals/e.toml", 'tasks = ["good", "good"]', ("$.tasks[1]", "twice|--attempts")),
    toml("an eval of an unknown task", "evals/e.toml", 'tasks = ["goood"]', ("$.tasks[0]", "no task 'goood'|'good'")),
    toml("an eval that pins its own task", "evals/e.toml", 'tasks = [{ task = "good", version = 1 }]', ("$.tasks[0]", "no fixed version")),
    toml(
        "an eval's version that is no number",
        "evals/e.toml",
        'tasks = [{ task = "good", version = 0 }]',
        ("$.tasks[0]", "version|whole number"),
    ),
    toml("an eval with a near key", "evals/e.toml", 'taks = ["good"]\ntasks = ["good"]', ("$.taks", "'tasks'")),
]

TASKS = [
    task("no JSON", "[{", (None, "is not valid JSON|line 1")),
    task("empty", "", (None, "is not valid JSON")),
    task("null", "null", ("$", "list of steps")),
    task("an object", {"steps": []}, ("$", "list of steps")),
    task("no steps", [], ("$", "no steps")),
    task("a step that is text", [BOX, "check"], ("$[1]", "is an object")),
    task("a key twice", '[{"id": "a", "id": "b", "type": "review"}]', ("$[0]", "'id' appears twice")),
    task("NaN", '[{"id": "a", "type": "review", "timeout_seconds": NaN}]', (None, "NaN")),
    task("bottomless", "[" * 3000 + "]" * 3000, (None, "deeper")),
    task("half a surrogate", '[{"id": "\\ud800", "type": "review"}]', ("$[0].id", "surrogate")),
    task("no id", [changed(BOX, id=None)], ("$[0]", "id is missing")),
    task("no type", [changed(BOX, type=None)], ("$[0]", "type is missing")),
    task("two steps of one id", [BOX, changed(BOX, sandbox_name="other")], ("$[1].id", "duplicate step id 'box'")),
    task("depends_on that is text", [BOX, changed(CHECK, depends_on="box")], ("$[1].depends_on", "list of step ids")),
    task(
        "depends_on of nothing",
        [BOX, changed(CHECK, depends_on=["bax"])],
        ("$[1].depends_on[0]", "no step of this task|steps before it: box"),
    ),
    task("depends_on of a later step", [changed(BOX, depends_on=["check"]), CHECK], ("$[0].depends_on[0]", "doesn't come before")),
    task(
        "a retry from elsewhere",
        [BOX, changed(CHECK, retry_config={"retry_from_step_id": "x"})],
        ("$[1].retry_config", "no step of this task"),
    ),
    task(
        "retries below zero",
        [BOX, changed(CHECK, retry_config={"retry_from_step_id": "check", "max_retries": -1})],
        ("$[1].retry_config.max_retries", "max_retries"),
    ),
    task("a near step type", [changed(BOX, type="deploy_sandbx")], ("$[0].type", "unknown step type|'deploy_sandbox'")),
    task("an unknown step type", [BOX, {"id": "x", "type": "frobnicate"}], ("$[1].type", "unknown step type 'frobnicate'")),
    task("a near key of a step", [BOX, changed(CHECK, criterai=[])], ("$[1].criterai", "'criteria'")),
    task("a missing field", [changed(BOX, sandbox_name=None)], ("$[0]", "sandbox_name is missing")),
    task("a wrong type of field", [changed(BOX, sandbox_name=["box"])], ("$[0].sandbox_name", "")),
    task("a wrong mode", [changed(BOX, sandbox_mode="cloud")], ("$[0].sandbox_mode", "vm")),
    task(
        "an unknown criterion",
        [BOX, changed(CHECK, criteria=[{"type": "probe_file_exist", "criterion": "x", "paths": ["x"]}])],
        ("$[1].criteria[0].type", "probe_file_exists"),
    ),
    task("a sandbox that nobody deploys", [BOX, changed(CHECK, sandbox_name="bax")], ("$[1].sandbox_name", "'bax'|'box'")),
    task("a sandbox that is not waited for", [BOX, changed(CHECK, depends_on=[])], ("$[1].sandbox_name", "wait|depends_on")),
    task("an artifact that is nowhere", [BOX, changed(LOAD, artifact_id="inputz")], ("$[1].artifact_id", "no artifact 'inputz'|'inputs'")),
    task("an artifact in another case", [BOX, changed(LOAD, artifact_id="Inputs")], ("$[1].artifact_id", "spelled 'inputs'")),
    task("a pinned artifact of its own", [BOX, changed(LOAD, artifact_version=1)], ("$[1].artifact_id", "no fixed version")),
    task(
        "two things at once",
        [changed(BOX, type="deploy_sandbx"), changed(LOAD, artifact_id="Inputs"), changed(CHECK, criterai=[])],
        ("$[0].type", "unknown step type"),
        ("$[1].artifact_id", "spelled"),
        ("$[2].criterai", "'criteria'"),
    ),
]

ALL_AT_ONCE = case(
    "everything in one round",
    {
        "Envs/x/Dockerfile": "",
        "bundle.toml": "nmae = 1",
        "aliases.toml": "[agent]",
        "artifacts/none": None,
        "agents/a/x": "",
        "evals/e.toml": 'tasks = ["goood"]\nodd = ',
        "evals/f.toml": 'tasks = ["goood"]',
        "skills/tidy/x": "",
        "tasks/object.json": {},
        "tasks/type.json": [changed(BOX, type="frobnicate")],
        "tasks/ref.json": [BOX, changed(LOAD, artifact_id="Inputs")],
        "tasks/name.json": [BOX, changed(CHECK, sandbox_name="bax")],
    },
    ("Envs", None, "another spelling"),
    ("bundle.toml", "$.nmae", "'name'"),
    ("aliases.toml", "$.agent", "'agents'"),
    ("artifacts/none", None, "no files"),
    ("agents/a", None, "neither"),
    ("evals/e.toml", None, "TOML"),
    ("evals/f.toml", "$.tasks[0]", "goood"),
    ("skills/tidy", None, "SKILL.md"),
    ("tasks/object.json", "$", "list of steps"),
    ("tasks/type.json", "$[0].type", "frobnicate"),
    ("tasks/ref.json", "$[1].artifact_id", "spelled"),
    ("tasks/name.json", "$[1].sandbox_name", "bax"),
)
CASES = [*LAYOUT, *TOMLS, *TASKS, ALL_AT_ONCE]
