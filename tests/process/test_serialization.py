# SPDX-License-Identifier: Apache-2.0
"""Values whose kind loads torch's compiler, which takes seconds."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import pytest

from rcg.runtime.codec import make_codec
from tests.harness.board import reader_of, writer_of

torch = pytest.importorskip("torch")


def test_a_jagged_tensor_arrives_as_pickle_has_it(boards: Any) -> None:
    board, codec = boards(), make_codec()
    writer, reader = writer_of(board.member(0), 0, codec), reader_of(board.member(1), 0)
    rows = [torch.arange(float(n)) for n in (3, 5, 1000)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what is experimental in torch
        tensor = torch.nested.nested_tensor(rows, layout=torch.jagged)
        wanted = pickle.loads(pickle.dumps(tensor))
        writer.write([tensor, tensor])
        found, again = reader.read(0)
        assert found is again
        assert type(found) is type(wanted) and found.layout == wanted.layout
        assert found.dtype == wanted.dtype
        unbound = [[row.tolist() for row in each.unbind()] for each in (found, wanted)]
        assert unbound[0] == unbound[1] == [row.tolist() for row in rows]
