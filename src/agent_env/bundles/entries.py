"""The entries of a bundle, one rule set a kind: what must be there, what a thing is when its toml does not say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from agent_env.bundles.environments import image_problems
from agent_env.bundles.model import KINDS, BundleKind, Entry
from agent_env.bundles.reading import Folder, Node, fold
from agent_env.bundles.toml_types import toml_problems
from agent_env.documents.reading import at
from agent_env.documents.skill import SKILL_FILE, parse_skill
from agent_env.documents.task import parse_task
from agent_env.documents.updates import Json
from agent_env.engine.mending import mended
from agent_env.engine.plan import document_problems
from agent_env.errors import Problem, ProblemsError
from agent_env.ids import DERIVED, LOCAL, MAX_AUTHORED_ID_BYTES, id_problem, segment_problem

DOCKERFILE = "Dockerfile"


class EntryReader:
    """Reads the kind folders of one bundle.

    Args:
        folder: The bundle's root; receives what is wrong.
        id_root: What default ids start with.
        strict: Unknown keys are problems.
    """

    def __init__(self, folder: Folder, id_root: str, *, strict: bool) -> None:
        self._folder = folder
        self._notes = folder.notes
        self._id_root = id_root
        self._strict = strict
        self.ignored: list[str] = []
        self.broken: set[tuple[BundleKind, str]] = set()

    def read(self, kinds: Mapping[BundleKind, Node]) -> Iterator[Entry]:
        """Every entry that could be read."""
        for kind, node in kinds.items():
            for child in self._folder.list(node.path):
                name = self._entry_name(kind, child)
                if name is None:
                    continue
                wrong = segment_problem(name)
                if wrong:
                    self._notes.problem(self._folder.relative(child.path), f"the name can't be part of an id: it {wrong}")
                entry = None if wrong else self._entry(kind, name, child)
                if entry is None:
                    self.broken.add((kind, name))
                else:
                    yield entry

    def alone(self, kind: BundleKind, folder: Path) -> Entry | None:
        """The environment or agent of a folder that stands in no bundle; None when it can't be read (noted)."""
        return self._built(kind, folder.name, folder.name, Node(folder.name, folder, "folder"))

    def _entry_name(self, kind: BundleKind, child: Node) -> str | None:
        """The entry's name, or None for what is not an entry."""
        path, suffix = self._folder.relative(child.path), KINDS[kind].suffix
        if suffix is None:
            if child.kind == "folder":
                return child.name
            self.ignored.append(path)
            return None
        if child.kind == "folder":
            self._notes.problem(path, f"is a folder; {KINDS[kind].folder}/ holds {suffix} files, without sub-folders")
            return None
        if child.name.endswith(suffix) and child.name != suffix:
            return child.name[: -len(suffix)]
        if fold(child.name).endswith(suffix):
            self._notes.problem(path, f"its ending is not spelled {suffix!r}", hint="rename it")
        else:
            self.ignored.append(path)
        return None

    def _entry(self, kind: BundleKind, name: str, node: Node) -> Entry | None:
        path = f"{KINDS[kind].folder}/{node.name}"
        match kind:
            case BundleKind.TASK:
                return self._task(name, path, node)
            case BundleKind.EVAL:
                return self._eval(name, path, node)
            case BundleKind.SKILL:
                return self._skill(name, path, node)
            case BundleKind.ARTIFACT:
                return self._artifact(name, path, node)
            case _:
                return self._built(kind, name, path, node)

    def _task(self, name: str, path: str, node: Node) -> Entry | None:
        data = self._noted_json(node, path)
        if data is None:
            return None
        id = f"{self._id_root}/{name}"
        if not isinstance(data, list):
            self._notes.problem(path, "a bundle's task is a list of steps", path="$", hint='write [ {"id": …, "type": …}, … ]')
            return None
        found: list[Problem] = []
        task = parse_task(data, source=path, task_id=id, strict=self._strict, checked=True, problems=found)
        if found:
            self._notes.problems += document_problems(data, source=path, task_id=id, strict=self._strict)
            task = mended(task, found)[0]
        self._notes.warnings += task.warnings
        return Entry(BundleKind.TASK, name, id, path, "task", task=task, found=tuple(found))

    def _noted_json(self, node: Node, path: str) -> Json | None:
        before = len(self._notes.problems)
        data = self._folder.json(node.path)
        if data is None and len(self._notes.problems) == before:
            self._notes.problem(path, "a bundle's task is a list of steps, not null", path="$")
        return data

    def _eval(self, name: str, path: str, node: Node) -> Entry | None:
        data = self._folder.toml(node.path)
        if data is None:
            return None
        type = self._type(data, path) or "eval"
        self._check_toml(BundleKind.EVAL, type, data, path)
        return Entry(BundleKind.EVAL, name, self._id(data, name, path, BundleKind.EVAL), path, type, data)

    def _skill(self, name: str, path: str, node: Node) -> Entry | None:
        files = self._folder.walk(node.path)
        self._refuse_derived(name, path)
        if SKILL_FILE not in files:
            other = next((file for file in files if fold(file) == fold(SKILL_FILE)), None)
            hint = f"rename {other!r}" if other else None
            self._notes.problem(path, f"has no {SKILL_FILE}", hint=hint)
            return None
        data = self._folder.read(files[SKILL_FILE])
        if data is not None:
            try:
                self._notes.warnings += parse_skill(data, source=f"{path}/{SKILL_FILE}", folder=name, strict=self._strict).warnings
            except ProblemsError as error:
                self._notes.problems += error.problems
        return Entry(BundleKind.SKILL, name, f"{self._id_root}/{name}", path, "skill", files=files)

    def _artifact(self, name: str, path: str, node: Node) -> Entry | None:
        files = self._folder.walk(node.path)
        config, file = self._config(BundleKind.ARTIFACT, path, node, files)
        if config is None:
            return None
        self._refuse_derived(name, path)
        declared = self._type(config, file)
        is_image = DOCKERFILE in files or declared == "docker_image"
        skill = next((name for name in files if fold(name) == fold(SKILL_FILE)), None)
        if skill and not is_image and declared is None:
            self._notes.problem(path, f"holds a {skill}, so it is a skill", hint=f"move the folder to skills/{name}")
            return None
        type = declared or _inferred(files)
        if type is None:
            self._notes.problem(path, "holds no files", hint="put one in, or remove the folder")
            return None
        self._check_toml(BundleKind.ARTIFACT, type, config, file)
        self._check_files(type, config, files, path)
        return Entry(BundleKind.ARTIFACT, name, self._id(config, name, file, BundleKind.ARTIFACT), path, type, config, files=files)

    def _built(self, kind: BundleKind, name: str, path: str, node: Node) -> Entry | None:
        """An environment or agent: what its image is built from is looked at when it is built."""
        rules = KINDS[kind]
        names = {child.name: child.path for child in self._folder.list(node.path)}
        config, file = self._config(kind, path, node, names)
        if config is None:
            return None
        if rules.config not in names and DOCKERFILE not in names:
            self._notes.problem(path, f"holds neither {DOCKERFILE} nor {rules.config}")
            return None
        type = self._type(config, file) or rules.default_type or ""
        self._check_toml(kind, type, config, file)
        entry = Entry(kind, name, self._id(config, name, file, kind), path, type, config, folder=node.path)
        self._notes.problems += image_problems(entry)
        return entry

    def _config(self, kind: BundleKind, path: str, node: Node, names: dict[str, Path]) -> tuple[dict[str, Json] | None, str]:
        """The entry's toml ({} when there is none), taken out of an artifact's files; None when it can't be read."""
        expected = KINDS[kind].config or ""
        file = f"{path}/{expected}"
        for name in names:
            if name != expected and fold(name) == expected:
                self._notes.problem(f"{path}/{name}", f"is another spelling of {expected!r}", hint="rename it")
        if expected not in names:
            return {}, file
        config = self._folder.toml(node.path / expected)
        if kind is BundleKind.ARTIFACT:
            del names[expected]
        return config, file

    def _type(self, config: Mapping[str, Json], file: str) -> str | None:
        declared = config.get("type")
        if declared is None or (isinstance(declared, str) and declared.strip()):
            return declared
        self._notes.problem(file, f"type is a text that is not empty, not {declared!r}", path="$.type")
        return None

    def _id(self, config: Mapping[str, Json], name: str, file: str, kind: BundleKind) -> str:
        declared = config.get("id")
        if declared is None:
            return f"{self._id_root}/{name}"
        wrong: str | None
        if not isinstance(declared, str):
            wrong = f"id is text, not {declared!r}"
        elif not declared.startswith(LOCAL):
            wrong = f"the id {declared!r} names an entity in a shared store; a bundle's ids start with {LOCAL!r}"
        elif len(declared.encode("utf-8", "replace")) > MAX_AUTHORED_ID_BYTES:
            wrong = f"the id is longer than {MAX_AUTHORED_ID_BYTES} bytes"
        elif kind is BundleKind.ARTIFACT and DERIVED in declared.rsplit("/", 1)[-1]:
            wrong = f"the last part of the id {declared!r} holds {DERIVED!r}, which is kept for derived ids"
        else:
            said = id_problem(declared)
            wrong = f"the id {declared!r} {said}" if said else None
        if wrong:
            self._notes.problem(file, wrong, path="$.id")
            return f"{self._id_root}/{name}"
        return str(declared)

    def _refuse_derived(self, name: str, path: str) -> None:
        if DERIVED in name:
            self._notes.problem(path, f"the name holds {DERIVED!r}, which is kept for derived ids", hint="rename the folder")

    def _check_toml(self, kind: BundleKind, type: str, data: Mapping[str, Json], file: str) -> None:
        problems, warnings = toml_problems(kind, type, data, file=file, strict=self._strict)
        self._notes.problems += problems
        self._notes.warnings += warnings

    def _check_files(self, type: str, config: Mapping[str, Json], files: Mapping[str, Path], path: str) -> None:
        self._notes.problems += _file_problems(type, config, files, path)


def _inferred(files: Mapping[str, Path]) -> str | None:
    if DOCKERFILE in files:
        return "docker_image"
    if len(files) == 1:
        return "file"
    return "file_artifact_universe" if files else None


def _file_problems(type: str, config: Mapping[str, Json], files: Mapping[str, Path], path: str) -> Iterator[Problem]:
    """What a type asks of the files beside its toml."""
    rule = _FILE_RULES.get(type)
    return rule(config, files, path) if rule is not None else iter(())


def _file_artifact_problems(config: Mapping[str, Json], files: Mapping[str, Path], path: str) -> Iterator[Problem]:
    del config
    if len(files) != 1:
        message = f"an artifact of type 'file' holds exactly one file, not {len(files)}"
        yield Problem(message, path, hint="use 'file_artifact_universe' for many")


def _file_universe_problems(config: Mapping[str, Json], files: Mapping[str, Path], path: str) -> Iterator[Problem]:
    del config
    if not files:
        yield Problem("a universe holds at least one file", path)


def _environment_problems(config: Mapping[str, Json], files: Mapping[str, Path], path: str) -> Iterator[Problem]:
    if "file" in config and files:
        yield Problem("names a file artifact in its toml, so its folder holds nothing else", path, at("$", "file"))
    elif "file" not in config and len(files) != 1:
        yield Problem(f"holds exactly one file, or names a file artifact in its toml; it holds {len(files)}", path)


def _image_problems(config: Mapping[str, Json], files: Mapping[str, Path], path: str) -> Iterator[Problem]:
    if ("ref" in config) == (DOCKERFILE in files):
        yield Problem(f"has either a {DOCKERFILE} or a ref in its toml, exactly one of them", path)


def _universe_problems(config: Mapping[str, Json], files: Mapping[str, Path], path: str) -> Iterator[Problem]:
    folders: dict[str, list[str]] = {}
    for name in files:
        parent = str(PurePosixPath(name).parent)
        folders.setdefault(parent, []).append(name)
    for parent, names in folders.items():
        if parent in {".", "metadata"}:
            yield Problem(f"{names[0]} stands outside of an environment's folder", path, hint="write <environment_name>/<one file>")
        elif len(names) > 1:
            yield Problem(f"{parent}/ holds {len(names)} files; each environment has exactly one", path)
    if not files and not config.get("environment_artifacts"):
        yield Problem("a universe of environments holds at least one", path)


def _cli_problems(config: Mapping[str, Json], files: Mapping[str, Path], path: str) -> Iterator[Problem]:
    file, entrypoint = f"{path}/{KINDS[BundleKind.ARTIFACT].config}", config.get("entrypoint")
    if not isinstance(entrypoint, str) or not entrypoint.strip():
        return
    if entrypoint not in files:
        yield Problem(f"the entrypoint {entrypoint!r} is no file of this folder", file, "$.entrypoint")
    elif str(PurePosixPath(entrypoint).parent / ".env") in files:
        yield Problem("a .env beside the entrypoint is written when the command is installed, so it can't be shipped", file)


_FILE_RULES: Mapping[str, Callable[[Mapping[str, Json], Mapping[str, Path], str], Iterator[Problem]]] = {
    "file": _file_artifact_problems,
    "file_artifact_universe": _file_universe_problems,
    "environment": _environment_problems,
    "environment_universe": _universe_problems,
    "cli": _cli_problems,
    "docker_image": _image_problems,
}
"""Type → what is wrong with a toml, the files beside it, and their folder's path."""
