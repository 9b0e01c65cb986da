# SPDX-License-Identifier: Apache-2.0
"""What an execution takes: the arguments of ``execute``, counted and named in one place.

Compiled graphs, handles on graphs of other processes and DAGs that run without compiling check
their arguments here, so that all three accept the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rcg.errors import GraphError

# What an input carries: a position, a name, or None for the whole input.
Key = int | str | None


@dataclass(frozen=True, slots=True)
class ExecutionSignature:
    """What ``execute`` takes.

    Attributes:
        keys: What the inputs carry, in order.
        num_positional: How many positional arguments. One that no key asks for is ignored.
        keywords: The names of the keyword arguments. Others are ignored, as in Ray.
    """

    keys: tuple[Key, ...]
    num_positional: int
    keywords: tuple[str, ...]

    @classmethod
    def of(cls, keys: Iterable[Key]) -> ExecutionSignature:
        """Return the signature of a DAG that uses these keys of its input.

        >>> ExecutionSignature.of([None])
        ExecutionSignature(keys=(None,), num_positional=1, keywords=())
        >>> ExecutionSignature.of([2, "scale"])
        ExecutionSignature(keys=(2, 'scale'), num_positional=3, keywords=('scale',))
        """
        keys = tuple(keys)
        # The whole input is what stands at position 0.
        positions = [key or 0 for key in keys if not isinstance(key, str)]
        keywords = tuple(key for key in keys if isinstance(key, str))
        return cls(keys, max(positions, default=-1) + 1, keywords)

    def values(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the value of each key, in the order of the keys.

        Raises:
            GraphError: The number or the names of the arguments are wrong.
        """
        if len(args) != self.num_positional:
            unused = f". No node uses those from position {self.num_positional} on: leave them out"
            raise GraphError(
                "dag.execute() or dag.execute_async() must be called with "
                f"{self.num_positional} positional args, got {len(args)}"
                f"{unused * (len(args) > self.num_positional)}"
            )
        for name in self.keywords:
            if name not in kwargs:
                raise GraphError(
                    f"dag.execute() or dag.execute_async() must be called with kwarg `{name}`"
                )
        return [kwargs[key] if isinstance(key, str) else args[key or 0] for key in self.keys]
