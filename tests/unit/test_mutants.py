# SPDX-License-Identifier: Apache-2.0
"""Mutants: small changes of functions that compile, and no others."""

from __future__ import annotations

from tests.power.mutants import mutants_of, narrowest_for, reaching
from tests.power.reaches import Reach

SOURCE = '''
LIMIT = 3

def find(rows: list[int], most: int = LIMIT) -> int | None:
    """Return 1 row."""
    for at, row in enumerate(rows):
        if row >= most and not is_over():
            break
        self.seen[at] = True
    else:
        _log.debug("none")
        raise KeyError(f"none of {len(rows) + 1}")
    return -row
'''


def test_each_mutant_changes_one_place_in_a_function():
    found = list(mutants_of("rcg/x.py", SOURCE))
    assert [(each.line, each.change) for each in found] == [
        (7, "row >= most and not is_over() -> (row >= most or not is_over())"),
        (7, "row >= most -> (row > most)"),
        (7, "not is_over() -> (is_over())"),
        (8, "break -> continue"),
        (9, "self.seen[at] = True -> pass"),
        (9, "True -> (False)"),
        (12, 'raise KeyError(f"none of {len(rows) + 1}") -> pass'),
        (13, "return -row -> return None"),
    ]
    for each in found:
        changed = [a != b for a, b in zip(each.text.split("\n"), SOURCE.split("\n"), strict=True)]
        assert changed.index(True) == each.line - 1 and sum(changed) == 1


def test_the_narrowest_tests_of_a_layer_come_first_and_fit_its_share():
    wide, narrow = frozenset({"rcg/a.py", "rcg/b.py"}), frozenset({"rcg/a.py"})
    known = {
        "tests/unit/test_slow.py": Reach(89, 0, wide),
        "tests/unit/test_wide.py": Reach(5, 0, wide),
        "tests/unit/test_narrow.py": Reach(10, 0, narrow),
        "tests/unit/test_full.py": Reach(0, 5, narrow),
        "tests/cluster/test_a.py": Reach(500, 0, narrow),
    }
    assert narrowest_for(known, known, "unit") == [
        "tests/unit/test_narrow.py",
        "tests/unit/test_wide.py",
    ]
    assert narrowest_for(known, known, "cluster") == ["tests/cluster/test_a.py"]
    assert reaching({"rcg/b.py"}, known) == ["tests/unit/test_slow.py", "tests/unit/test_wide.py"]
