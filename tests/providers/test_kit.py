"""The kit finds what it is there to find: a sound provider with one fault each, and the case that must fail."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.errors import AgentEnvError, InfrastructureError, SandboxNotFoundError, SupersededError, UserError
from agent_env.places import Command, Completed, Ending, Missing, Published, Upload
from agent_env.sandboxes import Capabilities, Level, SandboxSpec
from agent_env.sandboxes.conformance import CASES, Bench, Result, Subject, Verdict, chosen, run_cases
from agent_env.sandboxes.local.provider import LocalProvider


class Over:
    """Whatever is not overridden is the wrapped one's."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Faulty(Over):
    """A sound provider whose sandboxes and places can be given a fault."""

    sandbox: type[Over] = Over
    place: type[Over] = Over

    def _wrapped(self, sandbox: Any) -> Any:
        kind, place = self.sandbox, self.place

        class Wrapped(kind):  # type: ignore[misc, valid-type]
            async def machine(self) -> Any:
                return place(await self._inner.machine())

        return Wrapped(sandbox)

    async def create(self, spec: SandboxSpec) -> Any:
        return self._wrapped(await self._inner.create(spec))

    async def attach(self, sandbox_id: str, *, epoch: int, token: str) -> Any:
        return self._wrapped(await self._inner.attach(sandbox_id, epoch=epoch, token=token))


class ListsEverything(Faulty):
    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[Any]:
        async for info in self._inner.list({}):
            yield info


class AlwaysRemovedSomething(Faulty):
    async def destroy(self, sandbox_id: str) -> bool:
        await self._inner.destroy(sandbox_id)
        return True


class NeverRemoves(Faulty):
    async def destroy(self, sandbox_id: str) -> bool:
        return True


class ForgetsWhoItIs(Faulty):
    async def attach(self, sandbox_id: str, *, epoch: int, token: str) -> Any:
        try:
            return await super().attach(sandbox_id, epoch=epoch, token=token)
        except SandboxNotFoundError as error:
            raise InfrastructureError(str(error)) from error


class Boastful(Faulty):
    async def capabilities(self) -> Capabilities:
        told = await self._inner.capabilities()
        return replace(told, limits={**told.limits, "cpu": Level.HARD, "gpu": Level.HARD})


class HoldsPoliciesByWord(Faulty):
    async def capabilities(self) -> Capabilities:
        return replace(await self._inner.capabilities(), egress=frozenset({"allow_all", "none"}))

    async def create(self, spec: SandboxSpec) -> Any:
        return await super().create(replace(spec, network=None))


class MakesWhatItCanNotHold(Faulty):
    async def capabilities(self) -> Capabilities:
        return replace(await self._inner.capabilities(), egress=frozenset({"allow_all"}))

    def problems(self, spec: SandboxSpec, capabilities: Capabilities) -> list[str]:
        return []


class DropsSecrets(Faulty):
    async def create(self, spec: SandboxSpec) -> Any:
        return await super().create(replace(spec, secrets={}))


class ShowsSecrets(Faulty):
    async def create(self, spec: SandboxSpec) -> Any:
        return await super().create(replace(spec, labels={**spec.labels, **spec.secrets}))


class LeavesWhatWasCancelled(Faulty):
    async def create(self, spec: SandboxSpec) -> Any:
        work = asyncio.ensure_future(super().create(spec))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            with contextlib.suppress(AgentEnvError):
                await (await work).aclose()
            raise


def with_place(fault: type[Over]) -> type[Faulty]:
    return type(fault.__name__, (Faulty,), {"place": fault})


def with_sandbox(fault: type[Over]) -> type[Faulty]:
    return type(fault.__name__, (Faulty,), {"sandbox": fault})


class JoinsArguments(Over):
    async def run(self, command: Command) -> Completed:
        text = " ".join(arg if isinstance(arg, str) else arg.decode(errors="replace") for arg in command.argv)
        return await self._inner.run(replace(command, argv=["sh", "-c", text]))


class DecodesOutput(Over):
    async def run(self, command: Command) -> Completed:
        done = await self._inner.run(command)
        return replace(done, stdout=done.stdout.decode(errors="replace").encode())


class TellsTimeoutsAsExitCodes(Over):
    async def run(self, command: Command) -> Completed:
        done = await self._inner.run(command)
        return replace(done, ending=Ending.EXITED, exit_code=124) if done.ending is Ending.TIMED_OUT else done


class TellsMissingProgramsAsExitCodes(Over):
    async def run(self, command: Command) -> Completed:
        try:
            return await self._inner.run(command)
        except AgentEnvError:
            return Completed(Ending.EXITED, exit_code=127)


class CutsOutputSilently(Over):
    async def run(self, command: Command) -> Completed:
        return replace(await self._inner.run(command), stdout_dropped_bytes=0)


class WritesAsRoot(Over):
    async def put(self, uploads: list[Upload], *, owner: str | None = None) -> None:
        await self._inner.put([replace(upload, mode=0o400) if upload.source is not None else upload for upload in uploads], owner=owner)


class ReadsNothingThroughLinks(Over):
    async def read(self, path: Any, *, limit_bytes: int | None = None) -> bytes | Missing:
        entry = (await self._inner.stat([path], follow=False))[path]
        return b"" if getattr(entry, "kind", None) == "link" else await self._inner.read(path, limit_bytes=limit_bytes)


class StopsNobody(Over):
    async def stop_attempt(self, attempt: str) -> int:
        return 1


class IgnoresTakeovers(Over):
    async def run(self, command: Command) -> Completed:
        try:
            return await self._inner.run(command)
        except SupersededError:
            return Completed(Ending.EXITED, exit_code=0)


class PublishesElsewhere(Over):
    @property
    def published(self) -> Published:
        told = self._inner.published
        ports = dict(zip(told.tunnels, reversed(list(told.tunnels.values())), strict=True))
        return replace(told, tunnels=ports)


class ListensEverywhere(Over):
    @property
    def published(self) -> Published:
        told = self._inner.published
        return replace(told, tunnels={port: url.replace("127.0.0.1", "0.0.0.0") for port, url in told.tunnels.items()})


FAULTS: list[tuple[type[Faulty], str]] = [
    (ListsEverything, "life/a_list_holds_only_what_carries_all_the_labels"),
    (AlwaysRemovedSomething, "life/removing_is_whole_and_can_be_repeated"),
    (NeverRemoves, "life/removing_is_whole_and_can_be_repeated"),
    (ForgetsWhoItIs, "life/an_unknown_sandbox_is_not_found"),
    (Boastful, "life/capabilities_are_honest_and_stay"),
    (HoldsPoliciesByWord, "network/without_a_network_this_machine_is_not_reached"),
    (HoldsPoliciesByWord, "network/the_policy_in_force_is_told"),
    (MakesWhatItCanNotHold, "network/a_policy_that_can_not_be_held_is_refused_and_never_ignored"),
    (DropsSecrets, "commands/what_a_place_is_told_in_confidence_its_commands_see_and_nobody_else"),
    (ShowsSecrets, "commands/what_a_place_is_told_in_confidence_its_commands_see_and_nobody_else"),
    (LeavesWhatWasCancelled, "life/a_cancelled_creation_leaves_nothing"),
    (with_place(JoinsArguments), "commands/arguments_arrive_byte_for_byte"),
    (with_place(DecodesOutput), "commands/output_is_bytes"),
    (with_place(TellsTimeoutsAsExitCodes), "endings/a_command_that_times_out_leaves_nothing"),
    (with_place(TellsMissingProgramsAsExitCodes), "commands/a_missing_program_is_a_launch_error"),
    (with_place(CutsOutputSilently), "endings/output_is_cut_exactly_at_its_limit_and_says_so"),
    (with_place(WritesAsRoot), "files/permissions_are_kept_and_set_id_bits_never_pass"),
    (with_place(ReadsNothingThroughLinks), "files/links_are_read_through_and_failures_are_told_apart"),
    (with_place(StopsNobody), "endings/stopping_an_attempt_ends_what_it_left"),
    (with_place(IgnoresTakeovers), "owners/an_owner_that_was_overtaken_can_not_act"),
    (with_sandbox(PublishesElsewhere), "ports/each_published_port_answers_for_itself"),
    (with_sandbox(ListensEverywhere), "ports/addresses_are_never_empty_and_never_all"),
]


IN_VAIN = replace(DEFAULT_LIMITS, cleanup_seconds=1.0)
"""What a fault leaves behind is not waited for any longer."""


def judged(tmp_path: Path, wrap: Callable[[Any], Any], *patterns: str, limits: Limits = DEFAULT_LIMITS) -> list[Verdict]:
    environ = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "AGENT_ENV_LOCAL_SANDBOX_DIR": str(tmp_path / "work")}

    def sound() -> LocalProvider:
        return LocalProvider(tmp_path / "state", environ=environ)

    async def run() -> list[Verdict]:
        bench = Bench(Subject("local", lambda: wrap(sound())), limits=limits)
        found = [verdict async for verdict in run_cases(bench, chosen(CASES, patterns))]
        after = sound()
        for sandbox_id in [info.sandbox_id async for info in after.list({})]:
            await after.destroy(sandbox_id)
        await after.aclose()
        return found

    return asyncio.run(run())


@pytest.mark.parametrize(("fault", "case"), FAULTS, ids=lambda value: value if isinstance(value, str) else value.__name__)
def test_a_fault_is_found_by_its_case(fault: type[Faulty], case: str, tmp_path: Path) -> None:
    (sound,) = judged(tmp_path, Faulty, case)
    if sound.result is Result.SKIPPED:
        pytest.skip(sound.detail)
    assert (sound.result, sound.detail) == (Result.PASSED, "")
    (found,) = judged(tmp_path, fault, case, limits=IN_VAIN)
    assert found.result is Result.FAILED
    assert found.detail


def test_a_case_is_skipped_with_the_name_of_what_is_not_declared(tmp_path: Path) -> None:
    class Silent(Faulty):
        async def capabilities(self) -> Capabilities:
            return replace(await self._inner.capabilities(), publish=False, own_network=True)

    (verdict,) = judged(tmp_path, Silent, "ports/each_published_port_answers_for_itself")
    assert (verdict.result, verdict.detail) == (Result.SKIPPED, "agentenv-capability-missing: publish")


def test_a_provider_that_breaks_is_a_verdict_and_no_end_of_the_kit(tmp_path: Path) -> None:
    class Breaks(Faulty):
        async def create(self, spec: SandboxSpec) -> Any:
            raise ZeroDivisionError("inside")

    found = judged(tmp_path, Breaks, "commands/output_is_bytes", "life/an_unknown_sandbox_is_not_found")
    assert {verdict.result for verdict in found} == {Result.FAILED, Result.PASSED}
    assert any("ZeroDivisionError" in verdict.detail for verdict in found)


def test_a_case_that_hangs_ends_at_its_deadline(tmp_path: Path) -> None:
    class Hangs(Faulty):
        async def create(self, spec: SandboxSpec) -> Any:
            await asyncio.Event().wait()

    async def run() -> list[Verdict]:
        limits = replace(Bench(Subject("x", lambda: None)).limits, conformance_case_seconds=0.2)  # type: ignore[arg-type]
        bench = Bench(Subject("x", lambda: Hangs(LocalProvider(tmp_path / "state"))), limits=limits)  # type: ignore[arg-type]
        return [verdict async for verdict in run_cases(bench, chosen(CASES, ["commands/output_is_bytes"]))]

    (verdict,) = asyncio.run(run())
    assert (verdict.result, "did not end within 0.2 s" in verdict.detail) == (Result.FAILED, True)


@pytest.mark.parametrize(
    ("pattern", "count"), [("life/an_unknown_sandbox_is_not_found", 1), ("an_unknown_sandbox_is_not_found", 1), ("trees/*deep*", 1)]
)
def test_cases_are_chosen_by_id_name_or_glob(pattern: str, count: int) -> None:
    assert len(chosen(CASES, [pattern])) == count
    assert len(chosen(CASES, [])) == len(CASES)
    with pytest.raises(UserError, match="no case matches"):
        chosen(CASES, [pattern, "nothing"])


def test_cases_are_chosen_by_what_they_prove() -> None:
    assert {case.id for case in chosen(CASES, ["EX-11"])} == {"commands/output_is_bytes"}
    assert all("C3" in case.about for case in chosen(CASES, ["C3"]))


def test_the_kit_is_a_pytest_plugin_for_other_peoples_tests(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it_conforms(provider_case):\n    provider_case()\n")
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "output_is_bytes or gpu", "--agent-env-provider", "local"]
    done = subprocess.run([*argv, str(tmp_path)], cwd=tmp_path, capture_output=True, timeout=90, check=False)
    assert (done.returncode, b"1 passed" in done.stdout) == (0, True), done.stdout
    unnamed = subprocess.run([*argv[:-2], str(tmp_path)], cwd=tmp_path, capture_output=True, timeout=90, check=False)
    assert b"needs a provider: --agent-env-provider NAME" in unnamed.stdout + unnamed.stderr
