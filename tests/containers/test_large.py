"""What is written of an archive that holds one large file."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

from agent_env.containers.large import _Sink


@pytest.mark.parametrize("count", [0, 1, 5, 3000], ids="{} pieces".format)
def test_pieces_of_any_number_and_size_become_the_file_and_nothing_of_what_follows_it(tmp_path: Path, count: int) -> None:
    chance = random.Random(count)
    pieces = [chance.randbytes(chance.randrange(900)) for _ in range(count)]
    whole = b"".join(pieces)[:-37]
    with (tmp_path / "file").open("xb", buffering=0) as file:
        sink = _Sink(file, len(whole))
        sink.keep(pieces)
        sink.keep([b"what an archive ends with"])
    assert sink.left == 0
    assert (tmp_path / "file").read_bytes() == whole
    assert sink.total.hexdigest() == hashlib.sha256(whole).hexdigest()
