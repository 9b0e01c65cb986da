# SPDX-License-Identifier: Apache-2.0
"""Collectives in a DAG: tensors of several actors combined, gathered or spread by all of them.

::

    with InputNode() as inp:
        grads = [worker.grad.bind(inp) for worker in workers]
        grads = rcg.collective.allreduce.bind(grads, op=ReduceOp.AVG)
        dag = MultiOutputNode([w.step.bind(g) for w, g in zip(workers, grads)])

Each ``bind`` takes a list with one node of each actor and returns a list with one node for each, of
the same actors in the same order. An actor's rank is its position in the list; a communicator of
the user's has ranks of its own. All ranks take part in every execution, even if only some results
are used.

Every node's value must be a torch tensor. All ranks' tensors have the same dtype and the same
shape.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from rcg import actors, cluster
from rcg.callers import at_users_line
from rcg.comm.base import ReduceOp
from rcg.dag.authoring import bind_collective_nodes
from rcg.dag.nodes import CollectiveOutputNode
from rcg.dag.records import find_site
from rcg.errors import UnsupportedNodeError
from rcg.rdt import collectives
from rcg.rdt.collectives import DEFAULT

__all__ = ["ReduceOp", "allgather", "allreduce", "broadcast", "gather", "reduce", "reducescatter"]


class _Collective:
    """A kind of collective; ``bind`` puts it into a DAG."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def _bind(self, input_nodes: Sequence[Any], **options: Any) -> list[Any]:
        return bind_collective_nodes(self._kind, input_nodes, handle_of=_handle_of, **options)

    @at_users_line
    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Call the collective in a method, on tensors in its hands; all members of a group do so.

        ::

            allreduce(tensor, group_name="default", op=ReduceOp.SUM)
            broadcast(tensor, src_rank=0, group_name="default")
            reduce(tensor, dst_rank=0, group_name="default", op=ReduceOp.SUM)
            allgather(tensor_list, tensor, group_name="default")
            reducescatter(tensor, tensor_list, group_name="default", op=ReduceOp.SUM)

        Results are written into the tensors given: into ``tensor``, of one dtype and shape at
        all members, or into a list with such a tensor for each rank. They may be NumPy arrays.
        The group is one of ``rcg.experimental.collective.create_collective_group``, or of
        ``ray.util.collective``, whose function is called then.

        Raises:
            CommError: This process is no member of the group, or the communicator failed.
            GroupAborted: A member has died or left.
            TimeoutError: Another member called no collective for a long time.
            ValueError, TypeError: An argument is wrong, or members do not do the same, or one of
                them cannot take part (``TensorMismatch``, on CPUs); nothing was sent.
        """
        call = getattr(collectives, self._kind, None)
        if call is None:
            raise UnsupportedNodeError(
                f"{self._kind}(...) is for graphs: rcg.collective.{self._kind}.bind([...])",
                node=self._kind,
                site=find_site(),
            )
        given = inspect.signature(call).bind(*args, **kwargs)
        rays = cluster.rays_collective(self._kind, given.arguments.get("group_name", DEFAULT))
        if rays is not None and isinstance(op := given.arguments.get("op"), ReduceOp):
            given.arguments["op"] = cluster.rays_reduce_op(op.name)
        (rays or call)(*given.args, **given.kwargs)

    def __repr__(self) -> str:
        return f"rcg.collective.{self._kind}"

    def __reduce__(self) -> str:
        return self._kind


class _AllReduce(_Collective):
    """Combine the tensors of all actors, everywhere."""

    @at_users_line
    def bind(
        self, input_nodes: Sequence[Any], op: Any = ReduceOp.SUM, transport: Any = None
    ) -> list[Any]:
        """Give every actor the combination of all tensors, element by element.

        Args:
            input_nodes: A node of each actor. Or several such lists, with the same actors in the
                same order: then an actor's tensors are sent together.
            op: How they are combined: ``ReduceOp.SUM``, ``PRODUCT``, ``MAX``, ``MIN`` or ``AVG``.
            transport: None or ``"auto"`` for the default communicator of the graph (Gloo), the name
                of a registered one, or a communicator over exactly these actors.

        Returns:
            A node for each actor. With several lists, a list for each actor, with a node for each
            of its tensors.

        Raises:
            GraphError: Something cannot be; the text says what and where.
            UnsupportedNodeError: A node is not rcg's.
        """
        return self._bind(input_nodes, op=op, transport=transport)


class _AllGather(_Collective):
    """Give every actor the tensors of all."""

    @at_users_line
    def bind(self, input_nodes: Sequence[Any], transport: Any = None) -> list[CollectiveOutputNode]:
        """Give every actor all tensors ``[n, *rest]``, by rank: ``[ranks * n, *rest]``.

        Arguments, result and errors are those of ``allreduce.bind``, but one list is taken.
        """
        return self._bind(input_nodes, transport=transport)


class _ReduceScatter(_Collective):
    """Combine the tensors of all actors, and give each its part."""

    @at_users_line
    def bind(
        self, input_nodes: Sequence[Any], op: Any = ReduceOp.SUM, transport: Any = None
    ) -> list[CollectiveOutputNode]:
        """Combine tensors ``[ranks * n, *rest]``; each rank gets its part ``[n, *rest]``.

        Arguments, result and errors are those of ``allreduce.bind``, but one list is taken.
        """
        return self._bind(input_nodes, op=op, transport=transport)


class _Broadcast(_Collective):
    """Give every actor the tensor of one."""

    @at_users_line
    def bind(
        self, input_nodes: Sequence[Any], root: int = 0, transport: Any = None
    ) -> list[CollectiveOutputNode]:
        """Give every actor the tensor of the root.

        Args:
            input_nodes: A node or a handle of each actor. Only the root's tensor is sent; an actor
                given by its handle only receives. Where an actor is given by a node, it takes part
                when it has the node's value.
            root: The position of the root in the list; its entry is a node.
            transport: See ``allreduce.bind``; so are result and errors.
        """
        return self._bind(input_nodes, root=root, transport=transport)


class _Reduce(_Collective):
    """Combine the tensors of all actors at one."""

    @at_users_line
    def bind(
        self,
        input_nodes: Sequence[Any],
        op: Any = ReduceOp.SUM,
        root: int = 0,
        transport: Any = None,
    ) -> list[CollectiveOutputNode]:
        """Give the root the combination of all tensors; the others' nodes yield None.

        Args:
            input_nodes: A node of each actor.
            op: See ``allreduce.bind``.
            root: The position of the root in the list.
            transport: See ``allreduce.bind``; so are result and errors.
        """
        return self._bind(input_nodes, op=op, root=root, transport=transport)


class _Gather(_Collective):
    """Give one actor the tensors of all."""

    @at_users_line
    def bind(
        self, input_nodes: Sequence[Any], root: int = 0, transport: Any = None
    ) -> list[CollectiveOutputNode]:
        """Give the root all tensors ``[n, *rest]``, by rank: ``[ranks * n, *rest]``.

        The others' nodes yield None.

        Args:
            input_nodes: A node of each actor.
            root: The position of the root in the list.
            transport: See ``allreduce.bind``; so are result and errors.
        """
        return self._bind(input_nodes, root=root, transport=transport)


def _handle_of(value: object) -> Any | None:
    """Return Ray's handle for a handle of rcg's or Ray's; None for any other value."""
    if isinstance(value, actors.ActorHandle) or cluster.is_actor_handle(value):
        return actors.unwrap(value)
    return None


allreduce = _AllReduce("allreduce")
allgather = _AllGather("allgather")
reducescatter = _ReduceScatter("reducescatter")
broadcast = _Broadcast("broadcast")
reduce = _Reduce("reduce")
gather = _Gather("gather")
