"""Builds in the real engine: once, watched, stopped when nobody waits, and with nothing of a secret left behind."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import deque
from dataclasses import replace

import pytest

from agent_env.containers import EngineEndpoint
from agent_env.documents.outcomes import Kind, kind_of
from agent_env.errors import (
    DeadlineError,
    ImageBuildError,
    ImageNotFoundError,
    ImagePlatformError,
    ImageUnavailableError,
    ProblemsError,
    StorageError,
    TransferError,
)
from agent_env.images import Stage
from agent_env.images.building import Log
from agent_env.images.engine_api import EngineAnswerError
from agent_env.redaction import Redactor
from tests.images.laboratory import QUICK, until


async def test_a_build_is_streamed_watched_and_labelled_with_its_sources(here) -> None:
    async with here() as lab:
        request = lab.request("FROM BASE\nCOPY data /data\nRUN echo hello from step\n", {"data": os.urandom(3_000_000)})
        built = await lab.images().build(request, lab.told)
        assert built.labels["dev.agentenv.sources"] == request.context.source_digest(None)
        assert built.labels["dev.agentenv.home"] == lab.home
        assert built.names == (f"{lab.name}:1",)
        sent = [event for event in lab.events if event.stage is Stage.SENDING]
        assert sent[-1].done_bytes == sent[-1].total_bytes == request.context.size
        assert [event.done_bytes for event in sent] == sorted(event.done_bytes for event in sent)
        steps = [(event.step, event.message) for event in lab.events if event.stage is Stage.STEP]
        assert steps[:3] == [(1, f"FROM {lab.base}"), (2, "COPY data /data"), (3, "RUN echo hello from step")]
        assert "hello from step" in [event.message for event in lab.events if event.stage is Stage.LOG]


async def test_a_line_without_an_end_does_not_swallow_the_step_after_it(here) -> None:
    async with here() as lab:
        await lab.images().build(lab.request("FROM BASE\nRUN printf 'no end'\nRUN printf again\n"), lab.told)
        assert [event.message for event in lab.events if event.stage is Stage.LOG][:2] == ["no end", "again"]
        steps = [event.message for event in lab.events if event.stage is Stage.STEP]
        assert steps[:3] == [f"FROM {lab.base}", "RUN printf 'no end'", "RUN printf again"]


async def test_the_same_sources_are_built_once_under_every_name(here) -> None:
    async with here() as lab:
        images = lab.images()
        request = lab.request("FROM BASE\nRUN date +%s%N > /when\n")
        first = await images.build(request)
        again = await images.build(replace(request, name=request.name.with_tag("2")), lab.told)
        assert again.id == first.id
        assert again.names == (f"{lab.name}:1", f"{lab.name}:2")
        assert lab.events == []
        rebuilt = await images.build(replace(request, rebuild=True))
        assert rebuilt.id != first.id


async def test_arguments_and_target_make_other_images_of_the_same_context(here) -> None:
    async with here() as lab:
        request = lab.request("FROM BASE AS one\nARG WHO=nobody\nRUN echo $WHO > /who\nFROM one AS two\nRUN echo two >> /who\n")
        images = lab.images()
        plain = await images.build(request)
        given = await images.build(replace(request, build_args={"WHO": "you"}, target="one", name=request.name.with_tag("2")))
        assert await lab.run(plain.id, "cat", "/who") == "nobody\ntwo\n"
        assert await lab.run(given.id, "cat", "/who") == "you\n"
        assert plain.sources != given.sources


async def test_an_image_that_goes_by_its_base_is_built_anew_when_that_name_means_another_one(here) -> None:
    async with here() as lab:
        images, base = lab.images(), lab.request("FROM BASE\nRUN echo old > /base\n", tag="base")
        first = await images.build(base)
        name = base.name.tagged_name
        request = replace(lab.request(f"FROM {name}\nRUN date +%s%N > /when\n"), upon=name)
        old = await images.build(request)
        assert (await images.build(request, lab.told)).id == old.id
        assert lab.events == []
        await images.build(lab.request("FROM BASE\nRUN echo new > /base\n", tag="base"))
        new = await images.build(request)
        assert await lab.run(new.id, "cat", "/base") == "new\n"
        assert new.names == (request.name.tagged_name,)
        await images.tag(first, base.name)
        assert (await images.build(request)).id == old.id, "what was built upon the one before is still there"


async def test_cc_thirteen_processes_that_want_one_build_do_it_once(here) -> None:
    async with here() as lab:
        request = lab.request("FROM BASE\nRUN date +%s%N > /when\n")
        made = await asyncio.gather(*(lab.images().build(request) for _ in range(13)))
        assert len({image.id for image in made}) == 1


async def test_no_more_builds_run_at_once_than_configured(here) -> None:
    async with here() as lab:
        limits = replace(QUICK, image_builds=1)
        requests = [lab.request(f"FROM BASE\nRUN echo begin{i} && sleep 0.2 && echo end{i}\n", tag=str(i)) for i in range(3)]
        await asyncio.gather(*(lab.images(limits=limits).build(request, lab.told) for request in requests))
        said = [event.message for event in lab.events if event.stage is Stage.LOG and event.message.startswith(("begin", "end"))]
        assert [word.rstrip("012") for word in said] == ["begin", "end"] * 3
        assert any(event.stage is Stage.WAITING for event in lab.events)


async def test_a_failing_command_is_named_with_its_exit_code_and_the_end_of_the_log(here) -> None:
    async with here() as lab:
        request = lab.request("FROM BASE\nRUN exec 1>&2; for i in $(seq 1 100); do echo line $i; done; echo oops; exit 7\nRUN echo never\n")
        with pytest.raises(ImageBuildError) as caught:
            await lab.images().build(request)
        error = caught.value
        assert error.step == "RUN exec 1>&2; for i in $(seq 1 100); do echo line $i; done; echo oops; exit 7"
        assert error.exit_status == 7
        assert len(error.tail) == QUICK.image_log_lines
        assert "oops" in error.tail  # on one stream: between two, which comes last is chance
        assert "line 100" in error.message
        assert "step 2 of" in error.message
        assert kind_of(error) is Kind.INVALID
        assert await lab.images().held(f"{lab.name}:1") is None


@pytest.mark.parametrize(
    ("dockerfile", "word"),
    [("FROMX y\n", "unknown instruction"), ("FROM BASE\nCOPY absent /\n", "absent"), ("FROM BASE\nRUN [\"/no/such\"]\n", "/no/such")],
)  # fmt: skip
async def test_what_the_engine_says_of_a_bad_dockerfile_is_passed_on(here, dockerfile: str, word: str) -> None:
    async with here() as lab:
        with pytest.raises(ImageBuildError, match=word):
            await lab.images().build(lab.request(dockerfile))


async def test_a_base_image_whose_registry_does_not_answer_is_the_worlds_fault_and_one_that_is_absent_is_not(here, registry: str) -> None:
    async with here() as lab:
        with pytest.raises(ImageUnavailableError, match=r"127\.0\.0\.1:1 can't be reached"):
            await lab.images().build(lab.request("FROM 127.0.0.1:1/x:1\nRUN true\n"))
        with pytest.raises(ImageNotFoundError, match=f"there is no image {registry}/absent:1"):
            await lab.images().build(lab.request(f"FROM {registry}/absent:1\nRUN true\n"))


async def test_a_cancelled_build_stops_in_the_engine_and_leaves_no_container(here) -> None:
    async with here() as lab:
        word = "sleep 987.65"
        task = asyncio.create_task(lab.images().build(lab.request(f"FROM BASE\nRUN {word}\n")))
        await until(lambda: lab.running(word))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await lab.all_gone(word)


async def test_a_build_that_outlives_its_limit_is_stopped(here) -> None:
    async with here() as lab:
        with pytest.raises(DeadlineError, match=f"the build of {lab.name}:1 did not end within 1 s"):
            await lab.images(limits=replace(QUICK, image_build_seconds=1.0)).build(lab.request("FROM BASE\nRUN sleep 876.54\n"))
        await lab.all_gone("sleep 876.54")


KILLED = """
import asyncio, sys
from pathlib import Path
from agent_env.containers import Engine, EngineEndpoint
from tests.images.laboratory import Bench
async def main():
    async with Engine(EngineEndpoint(sys.argv[1])) as engine:
        lab = Bench(engine, Path(sys.argv[2]), sys.argv[3], home=sys.argv[4], name=sys.argv[5])
        request = lab.request("FROM BASE\\nRUN echo one > /one\\nRUN echo ready && sleep 765.43\\n")
        await lab.images().build(request, lambda event: print(event.message, flush=True))
asyncio.run(main())
"""


def killed_amid_a_build(*arguments: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", KILLED, *arguments], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert any(line.strip() == "ready" for line in child.stdout)
    child.kill()
    child.wait()


async def test_f01_a_killed_build_leaves_no_container_no_lock_and_gc_finds_its_layers(here, docker: EngineEndpoint) -> None:
    async with here() as lab:
        await asyncio.to_thread(killed_amid_a_build, docker.url, str(lab.root), lab.base, lab.home, lab.name)
        await lab.all_gone("sleep 765.43")
        # The same content is free to be built, and the step that was made before the kill is taken from the engine's cache.
        space = await lab.images().space()
        found = (await space.gc(dry_run=True)).intermediate
        assert len(found) == 1
        assert (await space.gc()).intermediate == found
        with pytest.raises(EngineAnswerError):
            await lab.api.ask("GET", f"images/{found[0]}/json")


async def test_im02_new_content_of_the_same_length_and_time_is_in_the_image(here) -> None:
    async with here() as lab:
        for content in ("aaaa", "bbbb"):
            request = lab.request("FROM BASE\nCOPY data /data\n", {"data": content})
            os.utime(request.context.root / "data", (0, 0))
            assert await lab.run((await lab.images().build(request)).id, "cat", "/data") == content


@pytest.mark.parametrize("name", ["API_KEY", "password", "GITHUB_ACCESS_TOKEN"])
async def test_im03_a_secret_is_refused_as_a_build_argument_before_anything_is_sent(here, name: str) -> None:
    async with here() as lab:
        with pytest.raises(ProblemsError, match="readable in the image's history") as caught:
            await lab.images().build(lab.request("FROM BASE\n", build_args={name: "canary-secret"}), lab.told)
        assert "canary-secret" not in str(caught.value)
        assert lab.events == []


async def test_im03_secrets_that_a_build_prints_are_in_no_event_and_no_error(here) -> None:
    async with here() as lab:
        redact = Redactor(["canary-of-a-task"]).redact
        request = lab.request("FROM BASE\nCOPY f /f\nRUN echo canary-of-a-task; cat /f; exit 1\n", {"f": "again canary-of-a-task\n"})
        with pytest.raises(ImageBuildError) as caught:
            await lab.images(redact=redact).build(request, lab.told)
        assert "canary-of-a-task" not in repr((lab.events, caught.value.message, caught.value.step, caught.value.tail))
        assert "***" in caught.value.message


async def test_im06_a_build_for_another_machine_is_refused_with_both_named(here) -> None:
    async with here() as lab:
        with pytest.raises(ImagePlatformError, match=r"made for linux/s390x, and the container engine runs linux/\w+"):
            await lab.images().build(lab.request("FROM BASE\nRUN true\n", platform="linux/s390x"))


async def test_a_context_that_changes_while_it_is_sent_fails_the_build_with_the_files_name(here) -> None:
    async with here() as lab:
        request = lab.request("FROM BASE\nCOPY . /\n", {"a": "x" * 2_000_000, "z": "before"})
        (request.context.root / "z").write_text("after!")
        with pytest.raises(TransferError, match="z changed while it was packed"):
            await lab.images().build(request)
        assert await lab.images().held(f"{lab.name}:1") is None


async def test_f20_a_build_that_does_not_fit_is_refused_before_it_is_sent(here) -> None:
    async with here() as lab:
        with pytest.raises(StorageError, match="must stay free") as caught:
            await lab.images(limits=replace(QUICK, image_free_bytes=1 << 60)).build(lab.request("FROM BASE\nRUN true\n"), lab.told)
        assert "image gc" in (caught.value.hint or "")
        assert not [event for event in lab.events if event.stage is Stage.SENDING]


async def test_another_installation_does_not_take_our_label_for_its_own_work(here) -> None:
    async with here() as lab:
        request = lab.request("FROM BASE\nLABEL dev.agentenv.home=forged\nRUN date +%s%N > /when\n")
        ours = await lab.images().build(request)
        theirs = await lab.images(home=f"{lab.home}-other", state=lab.root / "state-other").build(
            replace(request, name=request.name.with_tag("2"))
        )
        assert theirs.labels["dev.agentenv.home"] == f"{lab.home}-other"
        assert ours.id != theirs.id
        await (await lab.images(home=f"{lab.home}-other", state=lab.root / "state-other").space()).gc(everything=True)
        assert await lab.images().held(ours.id) is not None


@pytest.mark.parametrize(
    ("dockerfile", "word"),
    [
        ("FROM BASE\nRUN --mount=type=cache,target=/x true\n", "without BuildKit"),
        ("FROM BASE\nRUN <<EOF\necho x\nEOF\n", "here-documents"),
        ("FROM BASE\nCOPY absent /\n", ".dockerignore"),
    ],
)
async def test_im05_what_this_way_of_building_lacks_is_said_with_a_way_out(here, dockerfile: str, word: str) -> None:
    async with here() as lab:
        with pytest.raises(ImageBuildError) as caught:
            await lab.images().build(lab.request(dockerfile))
        assert word in (caught.value.hint or "")


def test_a_progress_bar_is_shown_in_its_last_state_and_an_endless_line_in_pieces() -> None:
    said: list[str] = []
    log = Log("x", lambda event: said.append(event.message), str, print, print, deque(maxlen=40))
    for text in ("Step 1/2 : RUN x\n", "10%\r", "20%\r100%\n", "\x1b[31mred\x1b[0m\n"):
        log.take(text)
    assert said == ["RUN x", "100%", "red"]
    for _ in range(200):
        log.take("y" * 1000)
    assert len(said) == 6
    log.close()
    assert "".join(said[3:]) == "y" * 200_000


def test_f24_the_words_of_podman_are_understood_too() -> None:
    steps: list[tuple[int, str]] = []
    made: list[str] = []
    log = Log("x", lambda event: steps.append((event.step, event.message)), str, made.append, print, deque(maxlen=40))
    for text in ("STEP 1/3: FROM x\n", "--> 0123456789ab\n", "STEP 2/3: RUN a\n", "--> Using cache 3f53bb00af94\n", "--> 3f53bb00af94\n",
                 "STEP 3/3: RUN b\n", "out\n", "--> 9a53bb00af94\n"):  # fmt: skip
        log.take(text)
    assert steps == [(1, "FROM x"), (2, "RUN a"), (3, "RUN b"), (3, "out")]
    assert made == ["9a53bb00af94"]


def test_only_the_engine_itself_says_in_which_container_a_command_runs() -> None:
    told: list[tuple[str, bool]] = []
    log = Log("x", lambda _: None, str, print, lambda id, there: told.append((id, there)), deque(maxlen=40))
    foreign = " ---> Running in ffffffffffff\n"
    for text in ("Step 1/3 : FROM x\n", " ---> 0123456789ab\n", foreign, "Step 2/3 : RUN a\n", " ---> Running in 111111111111\n", "out\n",
                 foreign, "Removed intermediate container 222222222222\n", " ---> Removed intermediate container 111111111111\n",
                 " ---> 9a53bb00af94\n", "Step 3/3 : RUN b\n", " ---> Running in 333333333333\n", foreign):  # fmt: skip
        log.take(text)
    assert told == [("111111111111", True), ("111111111111", False), ("333333333333", True)]
