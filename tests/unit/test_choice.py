# SPDX-License-Identifier: Apache-2.0
"""What CI runs beside the core: the tests that reach what was changed, the most special first."""

from __future__ import annotations

import pytest

from tests.power import choice, reaches
from tests.power.reaches import Reach

KNOWN = {
    "tests/unit/test_a.py": Reach(1, 0, frozenset({"rcg/a.py"})),
    "tests/cluster/test_a.py": Reach(30, 40, frozenset({"rcg/a.py", "rcg/all.py"})),
    "tests/cluster/test_b.py": Reach(30, 40, frozenset({"rcg/all.py"})),
    "tests/netns/test_c.py": Reach(20, 0, frozenset({"rcg/c.py"})),
    "tests/unit/test_native.py": Reach(1, 1, frozenset()),
}


def first(ages: dict[str, int]) -> list[str]:
    found = choice.priorities(KNOWN, ages)
    return sorted(found, key=lambda test: -found[test])


def test_what_is_changed_chooses_the_tests_that_execute_it_and_the_narrow_ones_come_first():
    assert first({"rcg/a.py": 0}) == ["tests/unit/test_a.py", "tests/cluster/test_a.py"]
    assert first({"rcg/all.py": 0, "rcg/a.py": 39})[1:] == [
        "tests/cluster/test_b.py",
        "tests/unit/test_a.py",
    ]
    assert first({"rcg/c.py": 0, "rcg/all.py": 0})[0] == "tests/netns/test_c.py"
    assert first({"tests/cluster/test_b.py": 3, "docs/index.md": 0}) == ["tests/cluster/test_b.py"]
    assert first({"rcg/native/ring.h": 0}) == ["tests/unit/test_native.py"]


def test_a_file_is_run_in_each_way_that_the_core_leaves_out():
    found = [(each.test, each.way) for each in choice.units(KNOWN, ["tests/cluster/test_b.py"])]
    assert found == [
        ("tests/cluster/test_a.py", "full"),
        ("tests/cluster/test_b.py", "full"),
        ("tests/cluster/test_b.py", "two nodes"),
        ("tests/netns/test_c.py", "netns"),
        ("tests/unit/test_native.py", "full"),
    ]


def test_a_map_that_lacks_a_file_is_stale(tmp_path, monkeypatch: pytest.MonkeyPatch):
    for name, text in {
        "rcg/new.py": "def f():\n    return 1\n",
        "rcg/known.py": "def f():\n    return 1\n",
        "rcg/constants.py": "A = 1\n",
        "rcg/protocol.py": "class P:\n    def f(self):\n        ...\n",
        "tests/harness/x.py": "",
        "tests/unit/test_known.py": "",
        "tests/unit/test_moved.py": "",
        "tests/unit/test_new.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(reaches, "ROOT", tmp_path)
    monkeypatch.setattr(reaches, "MAP", tmp_path / "reaches.json")
    gone = Reach(1, 0, frozenset())
    known = Reach(1.25, 2, frozenset({"rcg/known.py", "tests/harness/x.py"}))
    moved = Reach(1, 0, frozenset({"rcg/known.py", "rcg/old.py"}))
    tests = {"test_known": known, "test_gone": gone, "test_moved": moved}
    reaches.save({f"tests/unit/{name}.py": reach for name, reach in tests.items()})
    loaded = reaches.load()
    assert loaded == {
        "tests/unit/test_known.py": Reach(1.2, 2, known.sources),
        "tests/unit/test_moved.py": moved,
    }
    assert reaches.missing(loaded) == ["tests/unit/test_moved.py", "tests/unit/test_new.py"]
    assert [line.partition(":")[0] for line in reaches.stale(loaded)] == [
        "tests/unit/test_new.py is not in reaches.json",
        "no test reaches rcg/new.py",
    ]
