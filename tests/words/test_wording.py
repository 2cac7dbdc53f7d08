"""How counts, kinds and values read in a sentence."""

from __future__ import annotations

import stat

from agent_env.wording import counted, file_kind, json_kind, quoted, shown


def test_one_is_singular_and_all_other_counts_are_plural() -> None:
    assert [counted(n, "entry") for n in (0, 1, 2)] == ["0 entries", "1 entry", "2 entries"]
    assert [counted(n, "file") for n in (0, 1)] == ["0 files", "1 file"]
    assert [counted(2, word) for word in ("deploy", "key", "entry", "image")] == ["2 deploys", "2 keys", "2 entries", "2 images"]


def test_kinds_have_names_for_people() -> None:
    kinds = [json_kind(value) for value in ({}, [], "", True, 1, 1.5, None, b"")]
    assert kinds == ["an object", "a list", "text", "true or false", "a number", "a number", "null", "bytes"]
    modes = (stat.S_IFDIR, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFLNK)
    assert [file_kind(mode) for mode in modes] == ["folder", "pipe", "socket", "device", "device", "special file"]


def test_a_long_value_is_cut_and_a_name_spells_out_what_may_only_look_alike() -> None:
    assert shown(["a"]) == "['a']"
    assert (len(shown("x" * 100)), shown("x" * 100)[-1]) == (58, "…")
    assert quoted("аgent") == "'\\u0430gent'"  # the first letter is Cyrillic
    assert quoted("x" * 100) == f"'{'x' * 77}'…"
