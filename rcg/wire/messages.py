# SPDX-License-Identifier: Apache-2.0
"""The messages of the control socket, one class each; ``codec`` checks their fields.

A process connects to the endpoint of the process that compiled a graph. Its first message is an
``Opening``, which contains the id of the graph. The secret of the graph is not sent, but proven
(``proof``)::

    process                         the process that it connects to
                               <--  Challenge
      Prove + an Opening       -->
                               <--  Proven             and then:

    member of the graph             the process that compiled it
      Hello                    -->
                               <--  Welcome + descriptors of the board and the arenas
      Prepared                 -->                     once its communicator groups are open
      ...                           ...
                               <--  Where
      Here                     -->
                               <--  ProfileTorch       when a profile wants torch's events
      TorchProfiled            -->
                               <--  Broken             if another member is gone
                               <--  Stop
      Done                     -->                     if it has communicator groups
                               <--  CloseGroups        once all such members are done
      Stopped                  -->                     or: Failed

    host of another node
      JoinNode                 -->
                               <--  Ready
      FromMember               -->                     a message of a member of that node
                               <--  ToMember           and one to it
      MemberLost, LinkLost     -->
      NodeHere                 -->                     now and then, and when asked
                               <--  AskNode
                               <--  RecordEvents       when a profile begins, and when it ends:
                               <--  AskEvents
      EventsHere + events      -->                     several for each process
                               <--  EndNode

    member, to the host of each node to which it sends frames
      OpenLink                 -->
                               <--  Ready, and from then on frames alone (``native/packet.h``)

    handle on the graph
      Use                      -->
                               <--  Ready
      Execute + inputs         -->
                               <--  Submitted          or: Rejected + the error
                               <--  Completed + a value

      AskReport                -->
                               <--  Reported + a text

    rank of a group of communicators
      UseStore                 -->
                               <--  Ready
      SetValue                 -->
      GetValue                 -->
                               <--  Value, once there is one
      HasValues                -->
                               <--  Presence
      AddValue                 -->
                               <--  Total

    process that needs tensors      the process that holds them (``rcg.rdt``)
      UseTensors               -->
                               <--  Ready
      PullTensors              -->
                               <--  TensorsHere + the value
                                    or: TensorsComing, the tensors through the group, and when
                                        they are sent: TensorsHere; or TensorsGone, and the
                                        connection ends
                                    or, on one node: TensorsAt
      CheckTensors             -->
                               <--  TensorsHere or TensorsGone
                                    or, to another node: TensorsFollow, their bytes, and then
                                        TensorsHere or TensorsGone
                                    or: ObjectsHere + the arrays
                                    or: TensorsGone
      NoteSlices + a table     -->
      PullSlices               -->                     as PullTensors, but: SlicesAt + addresses
      SendTensors + what the transport says -->            a user's transport
                               <--  TensorsComing, and when they are sent: TensorsHere
                                    or: TensorsGone

    process that asked for them     the process that holds them
      UseTensors               -->
                               <--  Ready
      KeepTensors              -->
      FreeTensors              -->                     the end of the connection frees the rest

    any process                     the process that holds them
      UseTensors               -->
                               <--  Ready
      AskHeld, AskTransfers    -->
                               <--  Observed + what it holds, or has got

    process that makes a group      a process that becomes a member of it
      UseTensors               -->
                               <--  Ready
      JoinGroup                -->
                               <--  GroupChanged
      LeaveGroup               -->
                               <--  GroupChanged
      AskGroups                -->
                               <--  GroupsHere

    a task on its node              the process that holds tensors
      ListenForNodes           -->
                               <--  ListensForNodes

Instead of the first answer, ``Challenge`` or ``Proven`` there may be ``Again`` (too many
connections are silent), ``Refused`` (the process has no descriptor or thread left) or
``UnknownGraph``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from rcg.wire.codec import Message as Message
from rcg.wire.codec import message

_MAX_SIZE_BYTES: Final = 1 << 47  # more than there are addresses

Number = Annotated[int, range(1 << 63)]
Signed = Annotated[int, range(-(1 << 62), 1 << 62)]
Size = Annotated[int, range(_MAX_SIZE_BYTES + 1)]


# --- the first message of a connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening(Message):
    """The first message of a connection; a base class.

    Attributes:
        graph: The id of the graph that is meant.
        secret: The graph's secret; left out when it is sent.
    """

    graph: str
    secret: str


@message
class Hello(Opening):
    """A member of a graph has started.

    Attributes:
        process: Its name in the plan.
        clock: Identifies the clock that it reads; "" if that is unknown.
    """

    process: str
    clock: str


@message
class Use(Opening):
    """A handle wants to execute the graph."""


@message
class AskReport(Opening):
    """A handle wants the graph's report."""


@message
class JoinNode(Opening):
    """The host of another node has made its shared memory.

    Attributes:
        node: The node, as the plan names it.
        pid: The host's process.
        clock: Identifies the clock that it reads; "" if that is unknown.
        address: Where members of other nodes reach its gate: ``tcp://host:port``.
    """

    node: str
    pid: Number
    clock: str
    address: str


@message
class OpenLink(Opening):
    """A member wants to send frames to the gate of this process's node.

    Attributes:
        process: The member, as the plan names it.
        node: The node that it means.
    """

    process: str
    node: str


@message
class UseStore(Opening):
    """A rank of a group of communicators wants to use the group's store.

    Attributes:
        group: The name of the group; each has keys of its own.
    """

    group: str


@message
class UseTensors(Opening):
    """A process wants tensors of this one, or to tell it of a group; ``graph`` is the store's id.

    Attributes:
        key: The id of that process's own store, "" if it has none.
        pid: That process.
    """

    key: str
    pid: Number


@message
class ListenForNodes(Opening):
    """Listen for other nodes, too; ``graph`` is the store's id. The answer is ``ListensForNodes``.

    Attributes:
        host: The address of this machine that other nodes reach.
    """

    host: str


# --- before it


@message
class Challenge(Message):
    """Prove that you know the secret. The first message of a listener.

    Attributes:
        nonce: A text that it uses only once.
    """

    nonce: str


@message
class Prove(Message):
    """The answer to ``Challenge``; beside it is an ``Opening`` whose secret is left out.

    Attributes:
        graph: The id of the graph that is meant.
        nonce: A text that is used only once.
        proof: The HMAC over both texts and the opening, in hex.
    """

    graph: str
    nonce: str
    proof: str


@message
class Proven(Message):
    """The process knows the secret as well.

    Attributes:
        proof: Its own HMAC, in hex.
    """

    proof: str


# --- answers to it


@message
class Again(Message):
    """Connect again: this connection was ended to make room for others."""


@message
class Refused(Message):
    """There is no descriptor left for this connection, or no thread that could serve it.

    Attributes:
        text: The text of the error.
        pid: The process without descriptors or threads.
        limit: Its limit on them; 0 if that is not its own, or not known.
        lacks_threads: Whether it is threads that it lacks.
    """

    text: str
    pid: Number
    limit: Number
    lacks_threads: bool


@message
class UnknownGraph(Message):
    """The process has no such graph, or not any more."""


@message
class Welcome(Message):
    """A member was taken in; the board's descriptor comes with it, and those of arenas.

    Attributes:
        arenas: Of each member of the graph, whether the descriptor of its arena is among them.
    """

    arenas: tuple[bool, ...]


@message
class Ready(Message):
    """A handle may execute, or a rank use the store of its group."""


# --- between the driver and a member


@message
class Where(Message):
    """Where are you? The answer is ``Here``.

    Attributes:
        number: Counts the questions.
    """

    number: Number


@message
class Here(Message):
    """The answer to ``Where``: a member's stack and clock.

    Attributes:
        number: The number of the question.
        clock_ns: The time on its clock.
        stack: The stack of the running method, innermost last; empty if none runs.
    """

    number: Number
    clock_ns: Number
    stack: tuple[str, ...]


@message
class ProfileTorch(Message):
    """Run torch's profiler, or stop it and record its events. The answer is ``TorchProfiled``.

    Attributes:
        number: Counts the requests.
        is_on: Whether it is to run from now on.
    """

    number: Number
    is_on: bool


@message
class TorchProfiled(Message):
    """The answer to ``ProfileTorch``: it was done.

    Attributes:
        number: The number of the request.
        trouble: Why torch's profiler does not run here, or "".
    """

    number: Number
    trouble: str


@message
class Prepared(Message):
    """A member has opened its communicator groups."""


@message
class Broken(Message):
    """Another member is gone, so the graph is broken."""


@message
class Stop(Message):
    """The graph ends."""


@message
class Done(Message):
    """The loop of a member has ended; its communicator groups are still open."""


@message
class CloseGroups(Message):
    """Nobody uses a communicator group any more: those who are done may close theirs."""


@message
class Stopped(Message):
    """The loop of a member has ended."""


@message
class Failed(Message):
    """The loop of a member has ended without a request to stop.

    Attributes:
        text: Why.
    """

    text: str


# --- between the driver and the host of another node


@message
class FromMember(Message):
    """What a member of the host's node said to the driver.

    Attributes:
        process: The member.
        pid: Its process.
        text: The message, in JSON.
    """

    process: str
    pid: Number
    text: str


@message
class ToMember(Message):
    """What the driver says to a member of the host's node.

    Attributes:
        process: The member.
        text: The message, in JSON.
    """

    process: str
    text: str


@message
class MemberLost(Message):
    """A member's process has ended, or its connection.

    Attributes:
        process: The member.
        how: The name of a ``liveness.How``.
        why: More about it, or "".
    """

    process: str
    how: str
    why: str


@message
class LinkLost(Message):
    """A connection between nodes, over which frames go, has ended.

    Attributes:
        process: The member that sends there.
        node: The node of the gate.
        text: What happened.
    """

    process: str
    node: str
    text: str


@message
class EndNode(Message):
    """End every wait on the host's node.

    Attributes:
        is_closed: Whether the graph was closed; it broke otherwise.
        culprit: The process that is gone, if it broke.
    """

    is_closed: bool
    culprit: str


@message
class AskNode(Message):
    """Tell what the processes of your node do. The answer is ``NodeHere``.

    Attributes:
        number: Counts the questions.
    """

    number: Number


@message
class NodeHere(Message):
    """What the processes of a node do.

    Attributes:
        number: Of the question; 0 if nobody asked.
        text: A ``runtime.node.snapshot.Snapshot`` in JSON.
    """

    number: Number
    text: str


@message
class RecordEvents(Message):
    """Keep all events of the processes of your node from now on.

    Attributes:
        number: Counts the recordings.
        most: How many events are kept.
    """

    number: Number
    most: Number


@message
class AskEvents(Message):
    """Send the events of a recording, which ends; or the newest of each process.

    Attributes:
        number: Counts the questions; the answers repeat it.
        recording: The number of the recording; 0 for the newest events.
    """

    number: Number
    recording: Number


@message
class EventsHere(Message):
    """Events of a process of another node, or a part of them; they come with it.

    Attributes:
        number: Of the question.
        process: Whose events.
        lost: How many are missing.
        spans: The names of its spans.
        left: How many parts of the answer are still to come, of all processes.
    """

    number: Number
    process: str
    lost: Number
    spans: tuple[str, ...]
    left: Number


# --- between a handle and the process that compiled the graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Carrying(Message):
    """A message that carries encoded values (``payloads``); a base class.

    Attributes:
        size_bytes: How large they are, with their table.
        table_bytes: How large the table is.
    """

    size_bytes: Size = 0
    table_bytes: Size = 0


@message
class Execute(Carrying):
    """Start an execution; carries the inputs.

    Attributes:
        number: Its number, which the answer repeats.
    """

    number: Number = 0


@message
class Submitted(Message):
    """An execution has started.

    Attributes:
        number: Of the ``Execute``.
        execution: Its index.
    """

    number: Number
    execution: Number


@message
class Rejected(Carrying):
    """No execution has started; carries the error.

    Attributes:
        number: Of the ``Execute``.
    """

    number: Number


@message
class Completed(Carrying):
    """One output of an execution is complete; carries its value, or its failure.

    Attributes:
        execution: Its index.
        output: The number of the output buffer.
    """

    execution: Number
    output: Number


@message
class Reported(Carrying):
    """Carries the text of a report."""


# --- between a rank of a group and the store of the group


@message
class SetValue(Message):
    """Store a value.

    Attributes:
        key: Its key.
        value: Its bytes.
    """

    key: str
    value: bytes


@message
class GetValue(Message):
    """Wait for a value. The answer is ``Value``.

    Attributes:
        number: Counts the questions of this rank; the answer repeats it.
        key: The key of the value.
    """

    number: Number
    key: str


@message
class Value(Message):
    """A value is there.

    Attributes:
        number: Of the ``GetValue``.
        value: Its bytes.
    """

    number: Number
    value: bytes


@message
class HasValues(Message):
    """Are all these values there? The answer is ``Presence``.

    Attributes:
        number: Counts the questions of this rank; the answer repeats it.
        keys: Their keys.
    """

    number: Number
    keys: tuple[str, ...]


@message
class Presence(Message):
    """Whether values are there.

    Attributes:
        number: Of the ``HasValues``.
        is_there: Whether all of them are.
    """

    number: Number
    is_there: bool


@message
class AddValue(Message):
    """Add to a counter, which begins at 0. The answer is ``Total``.

    Attributes:
        number: Counts the questions of this rank; the answer repeats it.
        key: The key of the counter, whose value is its total in decimal digits.
        amount: What to add.
    """

    number: Number
    key: str
    amount: Signed


@message
class Total(Message):
    """The new total of a counter.

    Attributes:
        number: Of the ``AddValue``.
        total: The total.
    """

    number: Number
    total: Signed


# --- between a process that holds tensors and one that needs them


@message
class PullTensors(Message):
    """Send the tensors of an object.

    Attributes:
        number: Counts the questions of this connection; the answer repeats it.
        key: The object.
        group: Through which group, "" for none: they come with the answer.
        reads: Whether the asker may read them where they lie, and asks ``CheckTensors`` then.
    """

    number: Number
    key: str
    group: str
    reads: bool


@message
class NoteSlices(Message):
    """Slices of tensors, which will be pulled again and again: carries a part of their table.

    Attributes:
        slices: Names them, on this connection.
    """

    slices: Number


@message
class PullSlices(Message):
    """Send slices of the tensors of an object.

    Attributes:
        number: Counts the questions of this connection; the answer repeats it.
        key: The object.
        slices: Which, as in ``NoteSlices``.
        reads: Whether the asker may read them where they lie, and asks ``CheckTensors`` then.
    """

    number: Number
    key: str
    slices: Number
    reads: bool


@message
class CheckTensors(Message):
    """Did the tensors of ``TensorsAt`` lie there until now? They may go afterwards.

    The answer is ``TensorsHere`` or ``TensorsGone``.

    Attributes:
        number: Of the ``PullTensors`` or ``PullSlices``.
    """

    number: Number


@message
class AskHeld(Message):
    """Tell what you hold.

    Attributes:
        number: Counts the questions of this connection; the answer repeats it.
    """

    number: Number


@message
class AskTransfers(Message):
    """Tell which tensors you got.

    Attributes:
        number: Counts the questions of this connection; the answer repeats it.
        start_ns: Since when, on the monotonic clock.
        end_ns: Until when.
        clock: Which clock that is (``rcg.trace.clocks.clock_identity``). A process that reads
            another one tells all that it got, and the time on its own.
    """

    number: Number
    start_ns: Number
    end_ns: Number
    clock: str


@message
class Observed(Carrying):
    """What a process holds, or has got: carries a text, in JSON (``rcg.rdt.observe``).

    Attributes:
        number: Of the question.
    """

    number: Number = 0


@message
class SendTensors(Message):
    """Send the tensors of an object by the user's transport; carries what that says of it.

    Attributes:
        number: Counts the questions of this connection; the answer repeats it.
        key: The object.
    """

    number: Number
    key: str


@message
class ObjectsHere(Carrying):
    """Carries the arrays of an object, as one pickle.

    Attributes:
        number: Of the ``PullTensors``.
    """

    number: Number = 0


@message
class TensorsHere(Message):
    """Carries the tensors of an object, or says that all of them have been sent.

    Attributes:
        number: Of the ``PullTensors``.
    """

    number: Number


@message
class TensorsComing(Message):
    """The tensors of an object follow through the group.

    Attributes:
        number: Of the ``PullTensors``.
    """

    number: Number


@message
class TensorsAt(Message):
    """The tensors of an object may be read in the memory of this process.

    Attributes:
        number: Of the ``PullTensors``.
        addresses: Where each begins.
    """

    number: Number
    addresses: tuple[Number, ...]


@message
class SlicesAt(Carrying):
    """The tensors of an object may be read here: carries the address of each.

    Attributes:
        number: Of the ``PullSlices``.
    """

    number: Number = 0


@message
class TensorsFollow(Message):
    """The bytes of the tensors of an object follow on this connection, and no packets meanwhile.

    Attributes:
        number: Of the ``PullTensors``.
    """

    number: Number


@message
class TensorsGone(Message):
    """The tensors of an object cannot be sent.

    Attributes:
        number: Of the ``PullTensors``.
        text: Why.
        is_system_error: Whether the process is not a member of the group, or not any more.
    """

    number: Number
    text: str
    is_system_error: bool


@message
class KeepTensors(Message):
    """The process keeps objects, as long as this connection lasts.

    Attributes:
        keys: The objects; they may still be made.
    """

    keys: tuple[str, ...]


@message
class FreeTensors(Message):
    """Nobody needs objects any more.

    Attributes:
        keys: The objects.
    """

    keys: tuple[str, ...]


@message
class JoinGroup(Message):
    """Become a member of a group.

    Attributes:
        number: Counts the questions of this connection; the answer repeats it.
        group: The name of the group.
        token: Tells it from others that had or will have this name.
        backend: Its transport.
        rank: Of this member.
        labels: What errors call each member.
        keys: The id of each member's store.
        secrets: The secret of each.
    """

    number: Number
    group: str
    token: str
    backend: str
    rank: Number
    labels: tuple[str, ...]
    keys: tuple[str, ...]
    secrets: tuple[str, ...]


@message
class LeaveGroup(Message):
    """Close a group.

    Attributes:
        number: Counts the questions of this connection; the answer repeats it.
        group: The name of the group.
        token: As in ``JoinGroup``; "" for whichever group has the name.
    """

    number: Number
    group: str
    token: str


@message
class GroupChanged(Message):
    """A group was joined or left.

    Attributes:
        number: Of the question.
        trouble: Why that was not possible, or "".
    """

    number: Number
    trouble: str


@message
class AskGroups(Message):
    """Which groups are you in? The answer is ``GroupsHere``.

    Attributes:
        number: Counts the questions of this connection; the answer repeats it.
    """

    number: Number


@message
class GroupsHere(Message):
    """The groups of a process.

    Attributes:
        number: Of the ``AskGroups``.
        names: The name of each group.
        backends: Its transport.
        keys: The ids of its members' stores.
        secrets: The secrets of these.
    """

    number: Number
    names: tuple[str, ...]
    backends: tuple[str, ...]
    keys: tuple[tuple[str, ...], ...]
    secrets: tuple[tuple[str, ...], ...]


@message
class ListensForNodes(Message):
    """A process can be reached from other nodes.

    Attributes:
        address: Where; "" if it cannot be.
        trouble: Why not, or "".
    """

    address: str
    trouble: str
