"""The pytest plug-in: `provider_case` runs the cases of the kit, one test each, against the providers that are named.

    def test_it_conforms(provider_case):
        provider_case()

Named by `--agent-env-provider NAME` (may be repeated) or `agent_env_providers` in the ini file. A provider that is not registered comes in
through a fixture `provider_subject` of one's own, which returns a `conformance.Subject`. Nothing is imported until a test asks for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from agent_env.sandboxes.conformance.bench import Bench, Subject
    from agent_env.sandboxes.conformance.case import Case

OPTION = "--agent-env-provider"
INI = "agent_env_providers"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options."""
    group = parser.getgroup("agent-env")
    group.addoption(OPTION, action="append", default=[], metavar="NAME", help="Sandbox provider that `provider_case` is run against.")
    group.addoption("--agent-env-image", default=None, metavar="IMAGE", help="What containers are made of, for container-shaped providers.")
    parser.addini(INI, "Sandbox providers that `provider_case` is run against.", type="args", default=[])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test for each case, and for each provider that is named."""
    if "provider_name" in metafunc.fixturenames:
        names = metafunc.config.getoption(OPTION) or metafunc.config.getini(INI)
        if not names:
            raise pytest.UsageError(f"{metafunc.definition.nodeid} needs a provider: {OPTION} NAME, or {INI} in the ini file")
        metafunc.parametrize("provider_name", names, scope="session")
    if "provider_case" in metafunc.fixturenames:
        from agent_env.sandboxes.conformance.cases import CASES

        metafunc.parametrize("provider_case", CASES, ids=[case.id for case in CASES], indirect=True)


@pytest.fixture(scope="session")
def provider_subject(provider_name: str, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """The provider under test, as the configuration of the working folder wants it."""
    from agent_env.config import load_config
    from agent_env.sandboxes.conformance.subject import subject_of

    state_root = tmp_path_factory.mktemp("agent-env")
    return subject_of(provider_name, load_config(Path.cwd(), os.environ), state_root, image=pytestconfig.getoption("--agent-env-image"))


@pytest.fixture(scope="session")
def provider_bench(provider_subject: Subject) -> Iterator[Bench]:
    """What cases work with. What it made is removed at the end."""
    import asyncio

    from agent_env.sandboxes.conformance.bench import Bench

    bench = Bench(provider_subject)
    yield bench
    asyncio.run(bench.aclose())


@pytest.fixture
def provider_case(request: pytest.FixtureRequest, provider_bench: Bench) -> Callable[[], None]:
    """Runs one case: it fails with the case's own words, or skips with the name of the capability that is not declared."""
    case: Case = request.param

    def run() -> None:
        import asyncio

        from agent_env.sandboxes.conformance import Result, judge

        verdict = asyncio.run(judge(provider_bench, case))
        if verdict.result is Result.SKIPPED:
            pytest.skip(verdict.detail)
        if verdict.result is Result.FAILED:
            pytest.fail(f"{case.title}\n{verdict.detail}", pytrace=False)

    return run
