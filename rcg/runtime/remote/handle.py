# SPDX-License-Identifier: Apache-2.0
"""Handles: a pickled ``CompiledDAG`` becomes a handle in another process.

A handle is a client of the endpoint of its owner's process. It connects when it is first used. All
handles of a graph in one process share a ``Client``, which stores results until they are got.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NoReturn

from rcg.callers import at_users_line, end_at_caller
from rcg.channels.base import timeout_ns
from rcg.descriptors import telling_exhaustion
from rcg.errors import ChannelClosed, ChannelTimeout, ExecutionError, GraphError, RcgError
from rcg.options import FOR_EVER, Deadline
from rcg.runtime.by_reference import ByReference, has_references, lower_inputs, wait_until_made
from rcg.runtime.codec import make_codec
from rcg.runtime.control import registry
from rcg.runtime.mapping import MapResults, map_over
from rcg.runtime.observe.report import STACKS_TIMEOUT_S
from rcg.runtime.refs import READY, CompiledDAGRef, confirm, refs_of
from rcg.runtime.remote.client import (
    SUBMIT_RETRY_S,
    Client,
    HandleFacts,
    RemoteInquiry,
    RemoteOutput,
    Reply,
    ask_report,
    no_answer,
)
from rcg.threads import to_thread
from rcg.wire.messages import Execute
from rcg.wire.payloads import PreparedPayloads

_TRIP_S: Final = 0.01  # for a question and its answer
_LEAST_S: Final = 0.1  # for connecting, and for a question: also with a submit timeout of 0

# Connections to the owners of graphs, by graph. Without a lock: two threads that connect at the
# same moment have a connection each.
_clients: weakref.WeakValueDictionary[str, Client] = weakref.WeakValueDictionary()


def _no_readers(_: int) -> tuple[Any, ...]:
    """Only the owner of a graph has the handles of the actors that read an input."""
    return ()


def handle_from(facts: HandleFacts) -> Any:
    """Return the graph itself in its own process, elsewhere a handle."""
    if facts.owner_pid == os.getpid():
        own = registry.find(facts.graph_id)
        if own is not None:
            return own.face()
    return CompiledDAGHandle(facts)


class CompiledDAGHandle:
    """A compiled graph of another process on this node: execute and get as on the graph itself.

    To make one, pass a ``CompiledDAG`` to an actor or a task, which pickles it. The process that
    compiled the graph owns its window, options and end: it has to stay alive and keep the graph.
    Results are sent to the handle's process as they arrive and are stored there. So an execution of
    a handle counts as in flight until it completes.
    """

    answers_within_s: Final = 2 * STACKS_TIMEOUT_S  # the owner asks its actors first

    def __init__(self, facts: HandleFacts) -> None:
        self._facts = facts
        self.get_timeout_s = facts.get_timeout_s
        self.report_after_s = facts.report_after_s
        self.said: dict[int, object] = {}
        # Refs note here when they go away; at a handle it is the outputs that count.
        self.left: dict[int, int] = {}
        self._codec = make_codec()
        self._client: Client | None = None
        # As its clients count it; one, so that a step that Ctrl-C ended may come again.
        self._user = object()
        # The client of each process that uses this handle (the process may fork), with its
        # finalizer. The first entry stays, so that all threads share one client.
        self._used: dict[int, tuple[Client, weakref.finalize[..., Any]]] = {}
        self._is_closed = False

    # --- running

    @at_users_line
    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Start one execution and return its ref, or a list of refs; see ``CompiledDAG.execute``.

        Raises:
            Exception: As there.
            ChannelBroken: The process that compiled the graph is gone.
            OutOfDescriptors: There is none left, in this process or in that one.
        """
        deadline = self._deadline()
        client = self._connect(deadline.remaining_s())
        values, references = lower_inputs(
            self._facts.signature.values(args, kwargs), _no_readers, deadline.remaining_s()
        )
        with self._prepare(values) as prepared:
            reply = client.submit(prepared, deadline)
        self._hold(client, reply, references)
        try:
            left_s = deadline.remaining_s()
            if not client.wait(lambda: reply.is_done or client.error is not None, left_s):
                raise self._late()
            return self._refs(client, reply)
        except BaseException:
            client.abandon(reply)
            raise
        finally:
            for output in client.outputs:
                if output.dropped:
                    output.discard_dropped()

    async def execute_async(self, *args: Any, **kwargs: Any) -> Any:
        """As ``execute``, without blocking the event loop."""
        try:
            return await self._execute_async(args, kwargs)
        except GeneratorExit:  # the coroutine is closed
            raise
        except BaseException as error:
            end_at_caller(error)
            raise

    async def _execute_async(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        deadline = self._deadline()
        try:
            async with asyncio.timeout(deadline.remaining_s()):
                return await self._submit_async(args, kwargs, deadline)
        except TimeoutError as error:
            if isinstance(error, RcgError):
                raise
            raise self._late() from None

    async def _submit_async(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], deadline: Deadline
    ) -> Any:
        client = self._client
        if client is None or client.pid != os.getpid() or self._is_closed:
            client = await to_thread(partial(self._connect, deadline.remaining_s()))
        values: Sequence[Any] = self._facts.signature.values(args, kwargs)
        references: Sequence[ByReference] = ()
        if has_references(values):
            await wait_until_made(values, deadline.remaining_s())
            values, references = lower_inputs(values, _no_readers, deadline.remaining_s())
        with self._prepare(values) as prepared:
            while True:
                try:
                    reply = client.try_submit(prepared)
                    break
                except BlockingIOError:
                    await asyncio.sleep(SUBMIT_RETRY_S)
        self._hold(client, reply, references)
        try:
            known = client
            await client.wait_async(lambda: reply.is_done or known.error is not None, reply)
            return self._refs(client, reply)
        except BaseException:
            client.abandon(reply)
            raise

    def _deadline(self) -> Deadline:
        """Return when an ``execute`` ends: the owner's answer is on its way for a moment."""
        limit_s = self._facts.submit_timeout_s
        return Deadline(None if limit_s is None else max(limit_s + _TRIP_S, _LEAST_S))

    def _late(self) -> ChannelTimeout:
        """Return the error of an ``execute`` to which the owner has not answered in time."""
        why = "it may be stopped, or have no room. The execution may still begin"
        return no_answer(self._facts, why, self._facts.submit_timeout_s or 0.0)

    @at_users_line
    def map(self, *inputs: Any, in_flight: int | None = None, **keywords: Any) -> MapResults:
        """Execute for each input, and iterate over the results; see ``CompiledDAG.map``."""
        return map_over(self, inputs, keywords, in_flight, self._facts.max_inflight_executions)

    def has_ended(self) -> bool:
        """Return whether nothing can be executed any more: it was closed, or the graph ended."""
        client = self._client
        return self._is_closed or (client is not None and client.error is not None)

    def _prepare(self, values: Sequence[Any]) -> PreparedPayloads:
        encoded = list(map(self._codec.encode, values))
        with telling_exhaustion("to send an input to the process that compiled the graph"):
            return PreparedPayloads(Execute(), encoded)

    def _connect(self, timeout_s: float | None = None) -> Client:
        client = self._client
        if self._is_closed:
            raise ChannelClosed("Channel closed. The handle was closed.")
        if client is not None and client.pid == os.getpid():
            return client
        shared = self._shared_client()
        if shared is not None:
            let_go = self._end_of_use(shared)
        if shared is None or not shared.join(self._user):
            shared = Client(self._facts, timeout_s)
            let_go = self._end_of_use(shared)
            shared.join(self._user)
            try:
                shared.open()
                _clients[self._facts.graph_id] = shared
            except BaseException:
                shared.leave(self._user)
                raise
        first, _ = self._used.setdefault(os.getpid(), (shared, let_go))
        if first is not shared:
            let_go()  # another thread, or a signal handler, was faster
        self._client = first
        return first

    def _shared_client(self) -> Client | None:
        """Return the client that handles on this graph in this process share."""
        found = _clients.get(self._facts.graph_id)
        return found if found is not None and found.pid == os.getpid() else None

    def _end_of_use(self, client: Client) -> weakref.finalize[..., Any]:
        """Return what lets go of a client, and does not keep it: the thread of an open one does."""
        let_go = weakref.finalize(self, _leave, weakref.ref(client), self._user)
        let_go.atexit = False
        return let_go

    def _hold(self, client: Client, reply: Reply, references: Sequence[ByReference]) -> None:
        """Hold the references among inputs until the results of their execution have come."""
        graph = repr(self)

        def is_over() -> bool:
            if client.error is not None or not reply.is_done:
                return client.error is not None
            return reply.execution < 0 or client.has_completed(reply.execution)

        for each in references:
            each.hold_until(is_over, lambda: f"an execution of {graph}")

    def _refs(self, client: Client, reply: Reply) -> Any:
        error = reply.error
        if error is not None:
            raise error
        if not reply.is_done:
            raise client.end_error()
        listed = [client.outputs[number] for number in self._facts.outputs]
        refs: Any
        if self._facts.is_multi:
            refs = refs_of(self, listed, reply.execution)
        else:
            refs = CompiledDAGRef(self, listed[0], reply.execution, None)
        confirm(refs)
        return refs

    # --- what refs ask

    def try_fetch(
        self, ref: CompiledDAGRef, longest_ns: int | None, deadline: Deadline = FOR_EVER
    ) -> bool:
        """Wait for the result of a ref and fill it; see ``ResultSource``."""
        client, output = self._client_of(ref)
        longest_s = None if longest_ns is None else longest_ns / 1e9
        if not client.wait(lambda: self._is_settled(ref), longest_s):
            return False
        if self.said:
            self.said.clear()  # the next one is another hang
        arrived = output.frames.get(ref.execution)
        if arrived is not None:
            # Read, store, and only then discard: Ctrl-C between any two lines loses nothing.
            ref.value, ref.state = arrived.settle()
            output.frames.pop(ref.execution, None)
        elif ref.state < READY:
            raise client.end_error()
        return True

    @property
    def quiet_ns(self) -> int | None:
        """See ``ResultSource``."""
        return timeout_ns(self.report_after_s)

    def hang(self) -> int:
        """See ``Watched``: of a handle it is known when the next result comes."""
        return 0

    def inquire(self, within_s: float) -> RemoteInquiry:
        """Ask the owner for its report; see ``Watched``."""
        return RemoteInquiry(self._facts, within_s)

    def _client_of(self, ref: CompiledDAGRef) -> tuple[Client, RemoteOutput]:
        client = self._client
        if client is None or client.pid != os.getpid() or ref.buffer not in client.outputs:
            raise ExecutionError(
                "this process was forked from the one that executed, and the result goes there"
            )
        return client, client.outputs[ref.buffer.number]

    def _is_settled(self, ref: CompiledDAGRef) -> bool:
        client, output = self._client_of(ref)
        return ref.state >= READY or ref.execution in output.frames or client.error is not None

    def has(self, ref: CompiledDAGRef) -> bool:
        """Return whether ``get`` of a ref would not wait."""
        return self._is_settled(ref)

    def wait_for_any(self, refs: Sequence[CompiledDAGRef], timeout_s: float) -> None:
        """Wait until something happened to one of these refs."""
        client, _ = self._client_of(refs[0])
        client.wait(lambda: any(map(self._is_settled, refs)), timeout_s)

    async def wait_async(self, ref: CompiledDAGRef) -> None:
        """Wait until ``get`` of a ref would not wait."""
        client, output = self._client_of(ref)
        await client.wait_async(lambda: self._is_settled(ref), (output.number, ref.execution))

    # --- seeing

    def get_id(self) -> str:
        """Return the id of the graph, in hex."""
        return self._facts.graph_id

    @at_users_line
    def report(self) -> str:
        """Return the owner's report: what each process does, since when, and what it waits for.

        Raises:
            ChannelClosed: The graph was torn down.
            ChannelBroken: The process that compiled the graph is gone.
            ChannelTimeout: It does not answer.
        """
        return ask_report(self._facts)

    def __repr__(self) -> str:
        return f"CompiledDAGHandle({self._facts.graph_id}, owner={self._facts.owner_pid})"

    # --- elsewhere, and the end

    def __reduce__(self) -> Any:
        return handle_from, (self._facts,)

    def close(self) -> None:
        """Hang up: it cannot be used any more. The graph, and other handles on it, go on."""
        self._is_closed = True
        used = self._used.get(os.getpid())
        if used is not None:
            used[1]()
        shared = self._shared_client()
        if shared is not None:
            shared.leave(self._user)  # Ctrl-C came before the use was noted

    def teardown(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: only the process that compiled a graph can tear it down.

        Raises:
            GraphError: Always.
        """
        raise GraphError(
            f"only the process that compiled the graph, {self._facts.owner_pid}, can tear it "
            "down; close() lets go of this handle"
        )


def _leave(reference: weakref.ref[Client], user: object) -> None:
    client = reference()
    if client is not None:
        client.leave(user)
