"""What a person may call an environment or agent: a folder, an entry of a bundle in a folder or an installed one, and other names."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_env.bundles.model import BundleKind
from agent_env.bundles.single_plans import bundle_of, plan_named, plan_single, unknown_name
from agent_env.cli.named_documents import is_folder, planned
from agent_env.engine.options import Stores
from agent_env.errors import NotFoundError
from tests.bundles.building import write

FILES = {"envs/mail/Dockerfile": "FROM scratch\n", "envs/mail/env.toml": 'environment_name = "mail"\n', "artifacts/seed/seed.json": "{}"}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write(tmp_path / "office", FILES)


def test_an_entry_of_a_folder_is_named_behind_a_colon(bundle: Path, stores: Stores) -> None:
    by_name = planned(BundleKind.ENV, f"{bundle}:mail", stores)
    assert by_name[1] == plan_single(BundleKind.ENV, bundle / "envs/mail", stores)[1]
    assert not is_folder(f"{bundle}:mail")
    assert is_folder(f"{bundle}/envs/mail")
    assert is_folder("./nowhere:mail"), "what is not there is told as a path"


def test_seeds_are_looked_for_in_the_bundle_that_an_environment_was_named_with(bundle: Path, stores: Stores) -> None:
    for name in (f"{bundle}:mail", f"{bundle}/envs/mail"):
        assert bundle_of(BundleKind.ENV, name) == str(bundle)
    assert [bundle_of(BundleKind.ENV, name) for name in (str(bundle), "mail", "@local/a:b")] == [None, None, None]
    assert plan_named(BundleKind.ARTIFACT, f"{bundle}:seed", stores) is not None
    with pytest.raises(NotFoundError, match="has no artifact 'sed'"):
        plan_named(BundleKind.ARTIFACT, f"{bundle}:sed", stores)


def test_a_whole_bundle_in_the_place_of_an_entry_leads_to_its_entries(bundle: Path, stores: Stores) -> None:
    with pytest.raises(NotFoundError) as told:
        planned(BundleKind.ENV, str(bundle), stores)
    assert str(told.value) == f"{bundle} is a bundle (say {bundle}:mail)"
    with pytest.raises(NotFoundError, match="is a bundle without agents"):
        planned(BundleKind.AGENT, str(bundle), stores)


def test_an_unknown_name_leads_to_a_near_one_or_to_all(stores: Stores) -> None:
    assert unknown_name(BundleKind.AGENT, "scriptd", stores).hint == "did you mean 'scripted'?"
    assert unknown_name(BundleKind.ENV, "errand", stores).hint == "did you mean 'errand:office'?"
    assert unknown_name(BundleKind.ENV, "office", stores).hint == "did you mean 'errand:office'?"
    assert "or one of mail" in str(unknown_name(BundleKind.ENV, "nope", stores).hint)
