# SPDX-License-Identifier: Apache-2.0
"""A trace from a stranger is either refused in a sentence, or can be analysed and shown."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest

from rcg import checked, cli
from rcg.errors import TraceError
from rcg.trace.model import EVENT
from rcg.trace.trace import Trace
from tests.process import strangers
from tests.process.strangers import (
    Members,
    bomb,
    claims,
    is_a_sentence,
    members_of,
    sample,
    try_all,
    zipped,
)


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Members:
    return members_of(sample(), tmp_path_factory.mktemp("made"))


def test_what_is_whole_works_and_is_read_back(members, tmp_path):
    for made in (sample(), strangers.larger()):
        made.save(tmp_path / "made.trace")
        strangers.use(Trace.load(tmp_path / "made.trace"), tmp_path)


def test_files_that_claim_what_they_do_not_hold(members, tmp_path):
    refused, worked, faults = try_all(strangers.of_claims(members), tmp_path)
    assert not faults
    # Stored instead of deflated, further members and `info` in ten levels do no harm.
    assert refused > 30 and worked <= 5


@pytest.mark.full
def test_every_field_of_the_head_is_checked(members, tmp_path):
    refused, worked, faults = try_all(strangers.of_fields(members, 97), tmp_path)
    assert not faults
    assert refused > 2 * worked > 0


@pytest.mark.full
def test_events_with_other_numbers(members, tmp_path, dice):
    files = iter(dice.sample(list(strangers.of_events(sample(), members)), 24))
    refused, worked, faults = try_all(files, tmp_path)
    assert not faults
    assert min(refused, worked) > 3


def test_any_events_that_could_be_are_a_trace(members, tmp_path, dice):
    files = strangers.of_random_events(sample(), members, dice, 8)
    assert try_all(files, tmp_path)[1:] == (8, [])


@pytest.mark.full
def test_bytes_of_the_file_changed_and_those_of_members_with_sums_that_are_right(
    members, tmp_path, dice
):
    of_the_file = strangers.of_bytes(zipped(members), dice, 150)
    for files, least in (of_the_file, 100), (strangers.of_members(members, dice, 40), 10):
        refused, _, faults = try_all(files, tmp_path)
        assert not faults
        assert refused > least


CLAIMS = {
    "a bomb of events": ("more than a file of this size holds", lambda _: bomb(200 << 20)),
    "a bomb of a head": (
        "more than a file of this size holds",
        lambda _: bomb(200 << 20, "trace.json"),
    ),
    "an array of which nothing is there": (
        "claims 10,008,807,716 events and holds 0 bytes",
        lambda members: zipped(
            members | {"0/a0.npy": claims(f"({(522 << 30) // EVENT.itemsize},)")}
        ),
    ),
}


@pytest.mark.parametrize("what", CLAIMS)
def test_what_claims_much_is_refused_before_memory_is_taken(what, members, tmp_path):
    why, make = CLAIMS[what]
    (tmp_path / "claims").write_bytes(make(members))
    tracemalloc.start()
    try:
        with pytest.raises(TraceError, match=why):
            Trace.load(tmp_path / "claims")
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.full
def test_a_million_processes_and_a_plan_of_nested_lists_are_refused(members, tmp_path):
    head = strangers.parsed(members)
    plan = head["graphs"][0]["plan"]
    plan["actors"] = [{"id": f"a{n}", "label": "A", "key": ""} for n in range(100_000)]
    files = [("processes", zipped(members | {"trace.json": strangers.dumped(head)}))]
    head = json.loads(members["trace.json"])
    for text in ("[" * 100_000, '{"version": 1, "programs": ' * 100_000, "[[],[]," * 400_000):
        head["graphs"][0]["plan"] = text
        files.append((text[:5], zipped(members | {"trace.json": json.dumps(head).encode()})))
    assert try_all(iter(files), tmp_path) == (4, 0, [])


def test_the_command_says_one_sentence(members, tmp_path, capsys):
    path = tmp_path / "run.trace"
    count = 0
    for _, stored in strangers.of_fields(members, 307):
        path.write_bytes(stored)
        status = cli.main(["trace", str(path)])
        found = capsys.readouterr()
        if status:
            count += 1
            assert status == 1 and found.out == ""
            assert found.err.startswith("rcg: error: ")
            assert is_a_sentence(found.err.rstrip("\n"))
        else:
            assert found.err == ""
    assert count > 20


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("NaN", "not a number"),
        ("-Infinity", "not a number"),
        ("1e999", "too large"),
        ("9" * 5000, "5000 digits"),
        ("18446744073709551616", "20 digits"),
        ('{"a": 1, "a": 2}', "twice"),
        ("[" * 100_000, "too deep"),
        ("[0," * 3_000_000, "values"),
        ("'a'", "Expecting value"),
    ],
)
def test_json_beyond_its_limits_is_refused(text, why):
    for given in (text, text.encode()):
        with pytest.raises(ValueError, match=why):
            checked.parse(given)


@pytest.mark.parametrize("value", [True, None, 1.0, "1", [1], 4, -1, np.nan])
def test_only_whole_numbers_within_bounds_are_integers(value):
    with pytest.raises(ValueError, match="`n` must be a whole number from 0 to 3, found "):
        checked.integer({"n": value}, "n", 0, 3)
    assert checked.integer({"n": 3}, "n", 0, 3) == 3
