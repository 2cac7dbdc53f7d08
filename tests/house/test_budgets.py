"""The house stays readable: sizes, annotations and escapes are counted, not discussed."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(p for tree in ("src", "packages/agent-env-sdk/src") for p in (ROOT / tree).rglob("*.py"))


# Read when the first test asks, and not when the tests are collected: that is done by everyone who runs any of them.


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in SOURCES}


@cache
def functions() -> list[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    found = ((path, node) for path, tree in trees().items() for node in statements(tree))
    return [(path, node) for path, node in found if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


@cache
def lines() -> dict[Path, int]:
    return {path: len(path.read_text().splitlines()) for path in SOURCES}


def test_no_file_is_longer_than_600_lines_and_nine_in_ten_have_at_most_350() -> None:
    over = {str(path.relative_to(ROOT)): count for path, count in lines().items() if count > 600}
    assert not over
    assert percentile(sorted(lines().values()), 0.9) <= 350


def test_functions_fit_on_a_screen() -> None:
    sizes = sorted(length(node) for _, node in functions())
    over = {f"{path.relative_to(ROOT)}:{node.lineno} {node.name}": length(node) for path, node in functions() if length(node) > 120}
    assert not over
    assert percentile(sizes, 0.99) <= 80
    assert percentile(sizes, 0.9) <= 30


def test_every_argument_is_annotated() -> None:
    bare = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}({argument.arg})"
        for path, node in functions()
        for argument in arguments(node)
        if argument.annotation is None and argument.arg not in {"self", "cls"}
    ]
    assert not bare


def test_broad_excepts_are_rare_and_give_their_reason() -> None:
    broad, unexplained = 0, []
    for path, tree in trees().items():
        text = path.read_text().splitlines()
        for node in statements(tree):
            if isinstance(node, ast.ExceptHandler) and is_broad(node):
                broad += 1
                if "#" not in text[node.lineno - 1]:
                    unexplained.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not unexplained
    assert broad <= max(1, sum(lines().values()) / 1000)


def test_ignores_are_rare_and_carry_a_code() -> None:
    pattern = re.compile(r"type:\s*ignore|noqa")
    suspects = [path for path in SOURCES if pattern.search(path.read_text())]
    ignores = [(path, text) for path in suspects for text in comments(path) if pattern.search(text)]
    bare = [f"{path.relative_to(ROOT)} {text}" for path, text in ignores if not re.search(r"ignore\[[\w,\- ]+\]|noqa: [A-Z]+\d+", text)]
    assert not bare
    assert len(ignores) <= max(2, 0.3 * sum(lines().values()) / 1000)


@pytest.mark.parametrize("module", ["waiting.py"])
def test_only_the_waiting_module_sleeps(module: str) -> None:
    pattern = re.compile(r"\b(?:asyncio|time|anyio)\.sleep\(")
    assert not [str(p.relative_to(ROOT)) for p in framework() if p.name != module and pattern.search(p.read_text())]


def test_no_deadline_is_measured_on_the_wall_clock_ck01() -> None:
    pattern = re.compile(r"\btime\.time\(|datetime\.now\(|datetime\.utcnow\(")
    allowed = {"clock.py"}
    assert not [str(p.relative_to(ROOT)) for p in framework() if p.name not in allowed and pattern.search(p.read_text())]


def test_f09_no_timeout_literal_outside_the_defaults_module() -> None:
    found = []
    for path in framework():
        if path.name == "defaults.py":
            continue
        for node in ast.walk(trees()[path]):
            if isinstance(node, ast.Call):
                found += [
                    f"{path.relative_to(ROOT)}:{node.lineno} {keyword.arg}={keyword.value.value}"
                    for keyword in node.keywords
                    if keyword.arg and re.search(r"timeout|seconds|deadline", keyword.arg) and is_number(keyword.value)
                ]
    assert not found


def test_the_word_list_of_rooms_holds() -> None:
    banned = {"utils", "helpers", "common", "manager", "base", "misc"}
    assert not [str(p.relative_to(ROOT)) for p in SOURCES if banned & set(p.relative_to(ROOT).with_suffix("").parts)]


def test_no_source_says_that_work_is_left() -> None:
    pattern = re.compile(r"\b(?:TODO|FIXME|XXX)\b|NotImplementedError|pragma: no cover")
    assert not [str(p.relative_to(ROOT)) for p in SOURCES if pattern.search(p.read_text())]


def test_providers_never_import_each_other_and_their_names_stay_in_their_folders() -> None:
    folder = ROOT / "src/agent_env/sandboxes"
    rooms = {path.parent.name for path in folder.glob("*/__init__.py")}
    providers = {path.parent.name for path in folder.glob("*/provider.py")}
    assert {"local", "rootfs"} <= providers
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, tree in trees().items()
        for node in statements(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("agent_env.sandboxes.")
        for provider in [node.module.split(".")[2]]
        if provider in providers and "sandboxes" in path.parts and path.parent.name in rooms - {provider}
    ]
    assert not wrong


def test_a_provider_fits_on_a_few_screens() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in (ROOT / "src/agent_env/sandboxes").glob("*/provider.py")}
    assert not [f"{path.relative_to(ROOT)}: {count}" for path, count in lines.items() if count > 250]


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Every statement, handler and case below it; expressions, which are most of a tree, are not looked into."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            yield node
            yield from statements(node)


def framework() -> list[Path]:
    return [path for path in SOURCES if "agent_env" in path.parts]


def comments(path: Path) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool) and node.value > 0


def is_broad(handler: ast.ExceptHandler) -> bool:
    names = {"Exception", "BaseException"}
    return handler.type is None or (isinstance(handler.type, ast.Name) and handler.type.id in names)


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    extra = [argument for argument in (node.args.vararg, node.args.kwarg) if argument]
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, *extra]


def percentile(ordered: list[int], share: float) -> int:
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
