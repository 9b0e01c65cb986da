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
                               <--  Ready, and from then on frames alone (``native/link.h``)

    handle on the graph
      Use                      -->
                               <--  Ready
      Execute + inputs         -->
                               <--  Submitted          or: Rejected + the error
                               <--  Completed + a value

      AskReport                -->
                               <--  Reported + a text

    any process of this user, on this node (``rcg.runtime.observe.drivers``)
      AskGraphs                -->
                               <--  Reported + a text: the reports of all graphs, in JSON
      AskGraph                 -->
                               <--  Reported + a text: the report of one, in JSON
                                    or: Failed
      ProfileGraph             -->
                               <--  Ready, once it is recorded
      EndProfile               -->
                               <--  Reported + a file: the trace
                                    or, instead of either answer: Failed

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
                                    or, on one node: TensorsAt, TensorsOnGpu; between nodes:
                                        TensorsRegistered
                                    or, to another node: TensorsFollow, their bytes, and then
                                        TensorsHere or TensorsGone
                                    or: ObjectsHere + the arrays
                                    or: TensorsGone
      CheckTensors, CheckObjects -->                   when they have been read
                               <--  TensorsHere or TensorsGone
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Question(Message):
    """A question; its number counts the questions of this connection. A base class."""

    number: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Message):
    """The answer to a question, whose number it repeats. A base class."""

    number: Number


# --- the first message of a connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening(Message):
    """The first message of a connection. A base class."""

    graph: str  # the id of the graph that is meant
    secret: str  # of the graph; left out when it is sent


@message
class Hello(Opening):
    """A member of a graph has started."""

    process: str  # its name in the plan
    clock: str  # identifies the clock that it reads; "" if that is unknown


@message
class Use(Opening):
    """A handle wants to execute the graph."""


@message
class AskReport(Opening):
    """A handle wants the graph's report."""

    within_ms: Number = 500  # it waits so long for it


GRAPHS: Final = "graphs"
"""What the next three mean instead of a graph. They prove to know the address that they go to."""


@message
class AskGraphs(Opening):
    """A process of this user, on this node, wants the reports of all graphs of the process."""


@message
class AskGraph(Opening):
    """It wants the report of one graph, whose actors are asked."""

    graph_id: str


@message
class ProfileGraph(Opening):
    """It wants a profile of one graph, from now on."""

    graph_id: str
    torch: bool = False  # whether torch's profiler runs meanwhile


@message
class JoinNode(Opening):
    """The host of another node has made its shared memory."""

    node: str  # as the plan names it
    pid: Number  # the host's process
    clock: str  # as in ``Hello``
    address: str  # where members of other nodes reach its gate: ``tcp://host:port``


@message
class OpenLink(Opening):
    """A member wants to send frames to the gate of this process's node."""

    process: str  # the member, as the plan names it
    node: str  # the node that it means


@message
class UseStore(Opening):
    """A rank of a group of communicators wants to use the group's store."""

    group: str  # its name; each group has keys of its own
    who: str = ""  # what the others are told if it leaves, if anything


@message
class UseTensors(Opening):
    """A process wants tensors of this one, or has it join a group; ``graph`` is its store."""

    key: str  # the id of that process's own store, "" if it has none
    pid: Number  # of that process


@message
class ListenForNodes(Opening):
    """Listen for other nodes, too; ``graph`` is its store. Answered by ``ListensForNodes``."""

    host: str  # the address of this machine that other nodes reach


# --- before it


@message
class Challenge(Message):
    """Prove that you know the secret. The first message of a listener."""

    nonce: str  # a text that it uses only once


@message
class Prove(Message):
    """The answer to ``Challenge``; beside it is an ``Opening`` whose secret is left out."""

    graph: str
    nonce: str  # a text that is used only once
    proof: str  # the HMAC over both texts and the opening, in hex


@message
class Proven(Message):
    """The process knows the secret as well."""

    proof: str  # its own HMAC, in hex


# --- answers to it


@message
class Again(Message):
    """Connect again: this connection was ended to make room for others."""


@message
class Refused(Message):
    """There is no descriptor left for this connection, or no thread that could serve it."""

    text: str  # of the error
    pid: Number  # the process without descriptors or threads
    limit: Number  # its limit on them; 0 if that is not its own, or not known
    lacks_threads: bool  # whether it is threads that it lacks


@message
class UnknownGraph(Message):
    """The process has no such graph, or not any more."""


@message
class Welcome(Message):
    """A member was taken in; the board's descriptor comes with it, and those of arenas."""

    arenas: tuple[bool, ...]  # of each member: whether the descriptor of its arena came
    has_bell: bool  # whether that which wakes the driver's event loops came, as the last one


@message
class Ready(Message):
    """A handle may execute, or a rank use the store of its group."""


# --- between the driver and a member


@message
class Where(Question):
    """Where are you? The answer is ``Here``."""


@message
class Here(Answer):
    """A member's clock and stack, and the processor time that it has used."""

    clock_ns: Number
    stack: tuple[str, ...]  # of the running method, innermost last; empty if none runs
    thread_ns: Number = 0  # on a processor, of the thread that runs its methods; 0 if unknown
    process_ns: Number = 0  # of all threads of its process


@message
class ProfileTorch(Question):
    """Run torch's profiler, or stop it and record its events. The answer is ``TorchProfiled``."""

    is_on: bool  # whether it is to run from now on


@message
class TorchProfiled(Answer):
    """It was done."""

    trouble: str  # why torch's profiler does not run here, or ""


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
    """No member uses a communicator group any more: those that are done may close theirs."""


@message
class Stopped(Message):
    """The loop of a member has ended."""


@message
class Failed(Message):
    """The loop of a member has ended without a request to stop."""

    text: str  # why
    is_exiting: bool = False  # the actor ends, as its method asked for


# --- between the driver and the host of another node


@message
class FromMember(Message):
    """What a member of the host's node said to the driver."""

    process: str  # the member
    pid: Number
    text: str  # the message, in JSON


@message
class ToMember(Message):
    """What the driver says to a member of the host's node."""

    process: str
    text: str  # the message, in JSON


@message
class MemberLost(Message):
    """A member's process has ended, or its connection."""

    process: str
    how: str  # the name of a ``liveness.How``
    why: str  # more about it, or ""


@message
class LinkLost(Message):
    """A connection between nodes, over which frames go, has ended."""

    process: str  # the member that sends there
    node: str  # of the gate
    text: str  # what happened


@message
class EndNode(Message):
    """End every wait on the host's node."""

    is_closed: bool  # whether the graph was closed; it broke otherwise
    culprit: str  # the process that is gone, if it broke


@message
class AskNode(Question):
    """What do the processes of your node do? The answer is ``NodeHere``."""


@message
class NodeHere(Answer):
    """What the processes of a node do; the number is 0 if it was not asked for."""

    text: str  # a ``runtime.node.snapshot.Snapshot`` in JSON


@message
class RecordEvents(Message):
    """Keep all events of the processes of your node from now on."""

    number: Number  # counts the recordings
    most: Number  # how many events are kept


@message
class AskEvents(Question):
    """Send the events of a recording, which ends; or the newest of each process."""

    recording: Number  # its number; 0 for the newest events


@message
class EventsHere(Answer):
    """Events of a process of another node, or a part of them; they come with it."""

    process: str
    lost: Number  # how many are missing
    spans: tuple[str, ...]  # the names of its spans
    left: Number  # how many parts of the answer are still to come, of all processes


# --- between a handle and the process that compiled the graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Carrying(Message):
    """A message that carries encoded values (``payloads``). A base class."""

    size_bytes: Size = 0  # how large they are, with their table
    table_bytes: Size = 0  # how large the table is


@message
class Execute(Carrying):
    """Start an execution; carries the inputs."""

    number: Number = 0  # which the answer repeats


@message
class Submitted(Answer):
    """An execution has started, which an ``Execute`` asked for."""

    execution: Number  # its index


@message
class Rejected(Carrying):
    """No execution has started; carries the error."""

    number: Number  # of the ``Execute``


@message
class Completed(Carrying):
    """One output of an execution is complete; carries its value, or its failure."""

    execution: Number  # its index
    output: Number  # the number of the output buffer


@message
class Reported(Carrying):
    """Carries the text of a report, or the file of a trace."""


@message
class EndProfile(Message):
    """The profile of a graph ends; see ``ProfileGraph``."""


# --- between a rank of a group and the store of the group


@message
class SetValue(Message):
    """Store a value."""

    key: str
    value: bytes


@message
class GetValue(Question):
    """Wait for the value of a key. The answer is ``Value``."""

    key: str


@message
class Value(Answer):
    """A value is there."""

    value: bytes


@message
class HasValues(Question):
    """Are the values of all these keys there? The answer is ``Presence``."""

    keys: tuple[str, ...]


@message
class Presence(Answer):
    """Whether all of them are there."""

    is_there: bool


@message
class AddValue(Question):
    """Add to a counter, which begins at 0. The answer is ``Total``."""

    key: str  # of the counter, whose value is its total in decimal digits
    amount: Signed


@message
class Total(Answer):
    """The new total of a counter."""

    total: Signed


# --- between a process that holds tensors and one that needs them


READ_BY_KERNEL: Final = "kernel"
READ_BY_MAPPING: Final = "map"  # what can be mapped; the rest by the kernel
READ_BY_NIXL: Final = "nixl"
READ_ON_GPU: Final = "gpu "  # and the id of the GPU that the asker uses


@message
class PullTensors(Question):
    """Send the tensors of an object."""

    key: str  # the object
    group: str  # through which group; "" for none: they come with the answer
    reads: str  # a ``READ_BY_...`` if the asker would read them, and ask ``CheckTensors`` then


@message
class NoteSlices(Message):
    """Slices of tensors, which will be pulled again and again: carries a part of their table."""

    slices: Number  # names them, on this connection


@message
class PullSlices(Question):
    """Send slices of the tensors of an object."""

    key: str
    slices: Number  # as in ``NoteSlices``
    reads: str  # as in ``PullTensors``


@message
class CheckTensors(Message):
    """Did the tensors lie there until now, when they have been read? They may go afterwards.

    The answer is ``TensorsHere`` or ``TensorsGone``.
    """

    number: Number  # of the ``PullTensors`` or ``PullSlices``


@message
class CheckObjects(Question):
    """As ``CheckTensors``, of objects that were read without a question."""

    keys: tuple[str, ...]


@message
class AskHeld(Question):
    """What do you hold?"""


@message
class AskTransfers(Question):
    """Which tensors did you get?

    A process whose clock is another one tells all that it got, and the time on its own.
    """

    start_ns: Number  # since when, on the monotonic clock
    end_ns: Number  # until when
    clock: str  # which clock that is (``rcg.trace.clocks.clock_identity``)


@message
class Observed(Carrying):
    """What a process holds, or has got: carries a text, in JSON (``rcg.rdt.observe``)."""

    number: Number = 0  # of the question


@message
class SendTensors(Question):
    """Send the tensors of an object by the user's transport; carries what that says of it."""

    key: str


@message
class ObjectsHere(Carrying):
    """Carries the arrays of an object, as one pickle."""

    number: Number = 0  # of the ``PullTensors``


@message
class TensorsHere(Answer):
    """Carries the tensors of an object, or says that all of them have been sent."""


@message
class TensorsComing(Answer):
    """The tensors of an object follow through the group."""


@message
class TensorsAt(Answer):
    """The tensors of an object may be read in the memory of this process.

    Or they lie in frozen blocks, whose descriptors come with the message (``rcg.rdt.lent``).
    """

    addresses: tuple[Number, ...]  # where each begins: in this process, or in its block
    blocks: tuple[Number, ...]  # for each the number of its block, from 1; 0 for none


@message
class SlicesAt(Carrying):
    """The tensors of an object may be read here: carries the address of each."""

    number: Number = 0  # of the ``PullSlices``


@message
class TensorsOnGpu(Carrying):
    """The tensors of an object may be copied from a GPU: carries where they lie there."""

    number: Number = 0  # of the ``PullTensors``


@message
class TensorsRegistered(Carrying):
    """The tensors may be read by NIXL: carries what NIXL must know, and where each lies.

    The second is an array of the address, the bytes and the number of the device of each.
    """

    number: Number = 0  # of the ``PullTensors`` or ``PullSlices``
    agent: str = ""  # NIXL's agent of this process
    version: Number = 0  # how often memory of this process had ceased to be registered
    kind: str = ""  # of the memory: ``DRAM``, ``VRAM``


@message
class TensorsFollow(Answer):
    """The bytes of the tensors of an object follow on this connection, and no packets meanwhile."""


@message
class TensorsGone(Answer):
    """The tensors of an object cannot be sent."""

    text: str  # why
    is_system_error: bool  # whether the process is not a member of the group, or not any more


@message
class KeepTensors(Message):
    """The process keeps objects, as long as this connection lasts."""

    keys: tuple[str, ...]  # the objects; they may still be made


@message
class FreeTensors(Message):
    """Objects are not needed any more."""

    keys: tuple[str, ...]


@message
class AnnounceTensors(Message):
    """A call that has not run yet takes a value: carries its envelope, to be opened ahead."""


@message
class JoinGroup(Question):
    """Become a member of a group. The answer is ``GroupChanged``."""

    group: str  # its name
    token: str  # tells it from others that had or will have this name
    backend: str  # its transport
    rank: Number  # of this member
    labels: tuple[str, ...]  # what errors call each member
    keys: tuple[str, ...]  # the id of each member's store
    secrets: tuple[str, ...]  # the secret of each


@message
class LeaveGroup(Question):
    """Close a group. The answer is ``GroupChanged``."""

    group: str
    token: str  # as in ``JoinGroup``; "" for any group of this name


@message
class GroupChanged(Answer):
    """A group was joined or left."""

    trouble: str  # why that was not possible, or ""


@message
class AskGroups(Question):
    """Which groups are you in? The answer is ``GroupsHere``."""


@message
class GroupsHere(Answer):
    """The groups of a process."""

    names: tuple[str, ...]
    backends: tuple[str, ...]  # the transport of each
    keys: tuple[tuple[str, ...], ...]  # the ids of its members' stores
    secrets: tuple[tuple[str, ...], ...]  # the secrets of these


@message
class ListensForNodes(Message):
    """A process can be reached from other nodes."""

    address: str  # where; "" if it cannot be
    trouble: str  # why not, or ""
