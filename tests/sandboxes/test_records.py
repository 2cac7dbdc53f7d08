"""Records of sandboxes: seen whole or not at all, whoever is killed meanwhile, and folders that lie apart on the disk."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent_env.sandboxes.confined.records import Facts, Records, make_unrelated

_GET_FLAGS, _TOP_FOLDER = 0x80086601, 0x00020000

_RETIRE = """
import sys
from pathlib import Path
from agent_env.sandboxes.confined.records import Records
Records(Path(sys.argv[1])).retire("local-1")
"""


def test_a_record_whose_remover_was_killed_is_gone_with_all_of_its_files(tmp_path: Path) -> None:
    records = Records(tmp_path)
    (records.open(Facts("local-1", "")) / "events").touch()
    subprocess.run([sys.executable, "-c", _RETIRE, str(tmp_path)], check=True)
    assert records.read("local-1") is None
    assert [*records.root.iterdir()]
    assert [*records.ids()] == []
    assert [*records.root.iterdir()] == []


def test_what_somebody_who_lives_still_removes_is_left_to_him(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.open(Facts("local-1", ""))
    retired = records.retire("local-1")
    assert [*records.ids()] == []
    assert retired is not None
    assert retired.is_dir()
    assert records.retire("local-1") is None


def test_a_folder_of_unrelated_folders_says_so_to_its_file_system(tmp_path: Path) -> None:
    folder = tmp_path / "above" / "sandboxes"
    make_unrelated(folder)
    handle = os.open(folder, os.O_RDONLY)
    try:
        flags = int.from_bytes(fcntl.ioctl(handle, _GET_FLAGS, bytes(4)), sys.byteorder)
    except OSError:
        pytest.skip("agentenv-capability-missing: inode_flags")
    finally:
        os.close(handle)
    assert folder.stat().st_mode & 0o777 == 0o700
    if not flags & _TOP_FOLDER:
        pytest.skip("agentenv-capability-missing: inode_flags")


def test_a_folder_that_is_there_already_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o755)
    (tmp_path / "mine").chmod(0o755)
    make_unrelated(tmp_path / "mine")
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o755
