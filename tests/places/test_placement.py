"""The placement table, row by row."""

from __future__ import annotations

import pytest

from agent_env.errors import PlacementError
from agent_env.places import Deed, Recorded, Shape, TargetKind, Where, place_of
from agent_env.places.placement import TABLE

M, C = Shape.MACHINE_BACKED, Shape.CONTAINER_SHAPED
FILES = [Deed.LOAD, Deed.COLLECT, Deed.VERIFY]


@pytest.mark.parametrize("deed", list(Deed))
@pytest.mark.parametrize(
    ("target", "recorded", "shape", "where"),
    [
        (TargetKind.SANDBOX, Recorded.VM, M, Where.MACHINE),
        (TargetKind.SANDBOX, Recorded.CONTAINER, M, Where.ITS_CONTAINER),
        (TargetKind.SANDBOX, Recorded.CONTAINER, C, Where.SANDBOX_ITSELF),
        (TargetKind.AGENT, Recorded.IN_CONTAINER, M, Where.ITS_CONTAINER),
        (TargetKind.AGENT, Recorded.IN_CONTAINER, C, Where.SANDBOX_ITSELF),
        (TargetKind.AGENT, Recorded.ON_MACHINE, M, Where.MACHINE),
        (TargetKind.CONTAINER, Recorded.STARTED_HERE, M, Where.ITS_CONTAINER),
    ],
)
def test_each_recorded_target_has_exactly_one_place(target: TargetKind, recorded: Recorded, shape: Shape, where: Where, deed: Deed) -> None:
    assert place_of(target, deed, recorded, shape) is where


@pytest.mark.parametrize(
    ("target", "recorded", "shape"),
    [
        (TargetKind.SANDBOX, Recorded.VM, C),
        (TargetKind.AGENT, Recorded.ON_MACHINE, C),
        (TargetKind.CONTAINER, Recorded.STARTED_HERE, C),
        (TargetKind.CONTAINER, Recorded.ANY, M),
        (TargetKind.SANDBOX, Recorded.ANY, M),
    ],
)
def test_what_the_table_does_not_hold_is_refused_and_named(target: TargetKind, recorded: Recorded, shape: Shape) -> None:
    with pytest.raises(PlacementError, match=str(target)):
        place_of(target, Deed.VERIFY, recorded, shape)


def test_code_for_an_environment_runs_on_the_machine_or_in_the_environments_container() -> None:
    assert place_of(TargetKind.ENVIRONMENT, Deed.RUN_CODE, Recorded.ANY, M) is Where.MACHINE
    assert place_of(TargetKind.ENVIRONMENT, Deed.RUN_CODE, Recorded.ANY, C) is Where.ENVIRONMENT_CONTAINER


@pytest.mark.parametrize("deed", FILES)
@pytest.mark.parametrize("shape", list(Shape))
def test_b15_files_for_an_environment_go_into_the_servers_container(deed: Deed, shape: Shape) -> None:
    assert place_of(TargetKind.ENVIRONMENT, deed, Recorded.ANY, shape) is Where.SERVER_CONTAINER


def test_no_two_rows_answer_the_same_question() -> None:
    asked = [(row.target, deed, row.recorded) for row in TABLE for deed in row.deeds]
    assert len(asked) == len(set(asked))
