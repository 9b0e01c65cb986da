# SPDX-License-Identifier: Apache-2.0
"""Messages as JSON: every message comes back as it was, everything else is a ValueError."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg.wire import messages
from rcg.wire.codec import Message, decode, encode, message
from rcg.wire.messages import Answer, Carrying, Opening, Question
from tests.harness.peers import noted

KINDS = [
    kind
    for kind in vars(messages).values()
    if isinstance(kind, type) and issubclass(kind, Message)
    if kind not in (Message, Opening, Question, Answer, Carrying)
]


def values_of(hint: Any, text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    if hint is str:
        return text
    if hint is bool:
        return st.booleans()
    if hint is bytes:
        return st.binary(max_size=100)
    if get_origin(hint) is tuple:
        return st.lists(values_of(get_args(hint)[0], text), max_size=5).map(tuple)
    assert get_origin(hint) is Annotated
    allowed = get_args(hint)[1]
    return st.integers(allowed[0], allowed[-1])


def messages_with(text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    def of_kind(kind: Any) -> st.SearchStrategy[Any]:
        hints = get_type_hints(kind, include_extras=True)
        names = [field.name for field in dataclasses.fields(kind)]
        return st.builds(kind, **{name: values_of(hints[name], text) for name in names})

    return st.one_of(*map(of_kind, KINDS))


CLEAN = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
ANY_TEXT = st.text(st.one_of(st.characters(), st.sampled_from("\0\ud800\udfff")))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner),
    max_leaves=8,
)


@given(messages_with(CLEAN))
def test_every_message_comes_back_as_it_was(sent: Any) -> None:
    data = encode(sent)
    assert b"\0" not in data  # which ends it on the wire
    found = decode(data)
    assert found == sent and type(found) is type(sent)


@given(messages_with(ANY_TEXT))
def test_a_text_arrives_as_one_that_can_be_encoded_and_printed(sent: Any) -> None:
    found = decode(encode(sent))
    assert type(found) is type(sent)
    for field in dataclasses.fields(found):  # type: ignore[arg-type]
        value = getattr(found, field.name)
        for text in (value,) if isinstance(value, str) else value if type(value) is tuple else ():
            if isinstance(text, str):
                text.encode()
                assert "\0" not in text
    assert decode(encode(found)) == found


@given(st.binary() | JSON.map(lambda found: json.dumps(found).encode()))
def test_bytes_and_json_are_a_message_or_a_value_error(data: bytes) -> None:
    is_a_message_or_raises(data)


@given(messages_with(ANY_TEXT), st.data())
def test_a_damaged_message_is_a_message_or_a_value_error(sent: Any, data: st.DataObject) -> None:
    """Fields that are replaced, missing or surplus, and bytes that are."""
    found = json.loads(encode(sent))
    for name in data.draw(st.lists(st.sampled_from([*found, "surplus"]), max_size=3)):
        if data.draw(st.booleans()):
            found.pop(name, None)
        else:
            found[name] = data.draw(JSON)
    damaged = bytearray(json.dumps(found).encode())
    for at in data.draw(st.lists(st.integers(0, len(damaged) - 1), max_size=3)):
        damaged[at] = data.draw(st.integers(0, 255))
    is_a_message_or_raises(bytes(damaged))


def is_a_message_or_raises(data: bytes) -> None:
    try:
        found = decode(data)
    except ValueError:
        return
    assert type(found) in KINDS
    assert decode(encode(found)) == found


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[" * 60_000,
        b'{"type":' * 20_000,
        b"{}",
        b'{"type": null}',
        b'{"type": []}',
        b'{"type": "opening", "graph": "", "secret": ""}',
        b'{"type": "carrying", "size_bytes": 0, "table_bytes": 0}',
        b'{"type": "Stop"}',
        b'{"type": "stop"} ' + b"{}",
    ],
)
def test_this_is_no_message(data: bytes) -> None:
    with pytest.raises(ValueError, match="message"):
        decode(data)


def good_of(kind: type[Message]) -> dict[str, Any]:
    """The fields of a message of this kind."""
    hints = get_type_hints(kind, include_extras=True)
    found: dict[str, Any] = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        hint = hints[field.name]
        plain = {str: "x", bool: True, bytes: b"x"}
        found[field.name] = plain.get(hint, () if get_origin(hint) is tuple else 1)
    return found


def is_signed(kind: type[Message], name: str) -> bool:
    hint = get_type_hints(kind, include_extras=True)[name]
    return get_origin(hint) is Annotated and -1 in get_args(hint)[1]


WRONG = (None, -1, 1 << 63, 1 << 5000, 1.0, float("nan"), True, "7", {}, [None], [[]], [1.5])


NESTED = {messages.GroupsHere: ("keys", "secrets")}


def is_right(kind: type[Message], name: str, wrong: Any) -> bool:
    """Whether a value of ``WRONG`` is one that this field takes."""
    good = good_of(kind)[name]
    return (
        (wrong == "7" and good == "x")
        or (wrong is True and good is True)
        or (wrong == -1 and is_signed(kind, name))
        or (wrong == [[]] and name in NESTED.get(kind, ()))
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_missing_or_surplus_field_is_neither_sent_nor_taken(kind: Any) -> None:
    good = good_of(kind)
    assert decode(encode(kind(**good))) == kind(**good)
    head = json.loads(encode(kind(**good)))

    with pytest.raises(ValueError, match="must be"):
        decode(json.dumps({**head, "more": 1}).encode())
    for name in good:
        less = {other: value for other, value in head.items() if other != name}
        with noted(f"without {name}"), pytest.raises(ValueError, match=f"must be: .*{name}"):
            decode(json.dumps(less).encode())
        for wrong in WRONG:
            if is_right(kind, name, wrong):
                continue
            with noted(f"{name} = {wrong!r:.40}"):
                with pytest.raises(ValueError):
                    encode(kind(**{**good, name: wrong}))
                with pytest.raises(ValueError):
                    decode(json.dumps({**head, name: wrong}).encode())


def test_a_field_of_a_type_that_is_not_checked_cannot_be_declared() -> None:
    for hint in (int, float, dict, list, tuple, tuple[int, int], Any):
        with pytest.raises(TypeError, match="cannot have a field"):
            message(type("Odd", (Message,), {"__annotations__": {"odd": hint}}))


def test_two_messages_cannot_have_one_name() -> None:
    with pytest.raises(TypeError, match="two messages"):
        message(type("Stop", (Message,), {}))
    assert type(decode(b'{"type": "stop"}')) is messages.Stop
