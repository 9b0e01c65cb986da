# SPDX-License-Identifier: Apache-2.0
"""Objects with the methods of Ray's ``Communicator`` as communicators of rcg.

Ray's abstract class names the methods; an object of any class that has them is accepted. The
operations that Ray's signature lacks are built from those it has.

What such an object returns is compared with what it was asked for. If it differs, the operation
raises ``TensorMismatch`` at this rank once all of its tensors have been moved, so the other ranks
do not wait and the group stays usable.

What Ray's signature cannot express: it has no tags, so messages are matched by their order; it has
no ``abort``, so ``abort`` calls ``destroy`` on a thread of its own, and whether that ends a pending
operation depends on the class; and ``initialize`` cannot be interrupted.
"""

from __future__ import annotations

import importlib
import inspect
import pickle
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Final, NamedTuple, Self

from rcg.comm.base import Communicator, Membership, ReduceOp, check_tensors, exchange
from rcg.comm.refusal import Refusal
from rcg.error_text import describe_error, shielded, shielding
from rcg.errors import OutOfThreads, TensorMismatch, Unavailable
from rcg.options import Deadline
from rcg.threads import start_thread

METHODS: Final = (
    "initialize",
    "get_actor_handles",
    "get_rank",
    "get_self_rank",
    "get_world_size",
    "send",
    "recv",
    "allgather",
    "allreduce",
    "reducescatter",
    "destroy",
    "get_transport_name",
    "generate_communicator_id",
)
_MAX_TAG: Final = 1 << 31


def missing_methods(obj: object) -> tuple[str, ...]:
    """Return the methods of Ray's ``Communicator`` that an object, or a class, does not have."""
    return tuple(name for name in METHODS if not callable(getattr(obj, name, None)))


def is_communicator(obj: object) -> bool:
    """Return whether an object has the methods of Ray's ``Communicator``; a class is none."""
    return not isinstance(obj, type) and not missing_methods(obj)


@dataclass(frozen=True, slots=True)
class RaysOpener:
    """Opens groups of a user's object; it travels to each rank as a copy.

    Attributes:
        communicator: An object with the methods of Ray's ``Communicator``.
        own_devices: The types of devices that it surely serves, for the tensors that rcg makes for
            it itself; if empty, what ``get_transport_name`` says. It gets all tensors on the CPU
            and on CUDA's devices, because its signature does not say which it takes.
    """

    communicator: Any
    own_devices: frozenset[str] = frozenset()
    is_tagged: ClassVar[bool] = False
    devices: ClassVar[frozenset[str]] = frozenset({"cpu", "cuda"})

    def __post_init__(self) -> None:
        missing = missing_methods(self.communicator)
        if missing or isinstance(self.communicator, type):
            what = f"lacks {', '.join(missing)}" if missing else "is a class, not an object of it"
            raise TypeError(f"{self.communicator!r} is no communicator: it {what}")
        if not self.own_devices:
            kind = self.communicator.get_transport_name()
            devices = frozenset({"cpu"} if kind in ("cpu", "gloo") else {"cuda"})
            object.__setattr__(self, "own_devices", devices)

    @property
    def is_queued(self) -> bool:
        """Whether its operations may return when they are queued: those on GPUs do."""
        return "cuda" in self.own_devices

    def open(self, membership: Membership) -> RaysCommunicator:
        """Initialize the object and meet the other ranks; see ``Communicator.open``.

        Raises:
            ValueError: The object has another size or rank than the membership.
        """
        size = self.communicator.get_world_size()
        if size != membership.size:
            raise ValueError(
                f"the communicator has {size} ranks, but group {membership.group} has "
                f"{membership.size}"
            )
        made = RaysCommunicator(membership, self)
        try:
            # One whose ranks cannot find each other by themselves has this method beside Ray's.
            getattr(self.communicator, "meet", lambda _: None)(membership)
            made.initialize()
            exchange(membership, "here", b"", Deadline(membership.timeout_s))
        except BaseException:
            made.destroy()
            raise
        return made


@dataclass(frozen=True, slots=True)
class RaysClass:
    """A class of Ray's signature; each rank makes an object of it, with the arguments of Ray.

    Attributes:
        name: What transports call it.
        device: The type of devices that it serves.
        cls: The class.
        handles: The actors of a group in the order of their ranks.
    """

    name: str
    device: str
    cls: type
    handles: tuple[Any, ...] = ()
    is_tagged: ClassVar[bool] = False
    is_users: ClassVar[bool] = True

    def __post_init__(self) -> None:
        missing = missing_methods(self.cls)
        if missing or not isinstance(self.cls, type):
            what = f"it lacks {', '.join(missing)}" if missing else "it is not a class"
            raise TypeError(f"{self.cls!r} is no class of communicators: {what}")

    @property
    def devices(self) -> frozenset[str]:
        """The types of devices whose tensors it takes."""
        return frozenset({self.device})

    @property
    def is_queued(self) -> bool:
        """Whether its operations may return when they are queued."""
        return self.device != "cpu"

    def open(self, membership: Membership) -> RaysCommunicator:
        """Make the object of this rank, and meet the other ranks; see ``RaysOpener.open``."""
        rank, size = membership.rank, membership.size
        made_here = self.cls.generate_communicator_id() if rank == 0 else None  # type: ignore[attr-defined]
        deadline = Deadline(membership.timeout_s)
        first, *_ = exchange(membership, "id", pickle.dumps(made_here), deadline)
        stream = None
        if self.device != "cpu":
            stream = importlib.import_module(f"torch.{self.device}").current_stream()
        made = self.cls(size, pickle.loads(first), rank, list(self.handles), stream, False)
        return RaysOpener(made, self.devices).open(membership)


class RaysCommunicator(Communicator):
    """An object with the methods of Ray's ``Communicator``; see ``rcg.comm.Communicator``."""

    is_tagged: ClassVar[bool] = False
    devices: ClassVar[frozenset[str]] = frozenset({"cpu", "cuda"})

    def __init__(self, membership: Membership, opener: RaysOpener) -> None:
        super().__init__(membership)
        self._rays = opener.communicator
        self._labels = membership.labels
        self._device = min(opener.own_devices)
        self._ops = _ops_of(self._rays)
        self._refusal = Refusal(membership)
        self._reserved: list[Any] = []
        self._undestroyed = iter([self._rays])

    @classmethod
    def open(cls, membership: Membership) -> Self:
        """Refuse: a ``RaysOpener`` has the object that is opened."""
        raise Unavailable("a communicator of Ray's signature is opened by a RaysOpener")

    def initialize(self) -> None:
        """Initialize the object with the rank of this end.

        Raises:
            CommError: It raised.
            ValueError: It takes another rank.
        """
        self._call("initialize", self.rank)
        rank = self._rays.get_self_rank()
        if rank != self.rank:
            raise ValueError(f"the communicator has rank {rank}, not {self.rank}")

    def unsupported(self, dtype: Any, op: ReduceOp | None = None) -> str | None:
        """Return None: only the object knows, and it raises where it has to."""
        return None

    def reserve(self, operation: str, tensors: Sequence[Any], op: ReduceOp | None = None) -> None:
        """Take memory for copies of what is reduced and gathered; see ``Communicator``."""
        if operation in ("allreduce", "reduce"):
            self._reserved = [each.new_empty(each.shape) for each in tensors]
        elif operation == "gather":
            self._reserved = [each.new_empty(self._gathered_shape(each)) for each in tensors]

    def send(self, tensors: Sequence[Any], peer: int, tag: int = 0) -> None:
        """Send tensors to a rank; see ``Communicator``."""
        self._check_peer(peer, tag, _MAX_TAG)
        check_tensors(tensors)
        for tensor in tensors:
            self._call("send", tensor, peer)

    def recv(self, tensors: Sequence[Any], peer: int, tag: int = 0) -> None:
        """Receive tensors from a rank; see ``Communicator``."""
        self._check_peer(peer, tag, _MAX_TAG)
        check_tensors(tensors)
        wrong: list[TensorMismatch] = []  # the first
        for tensor in tensors:
            wanted, room = _form_of(tensor), tensor.detach()
            found = self._call(
                "recv", tuple(tensor.shape), tensor.dtype, peer, _allocator_of(tensor)
            )
            if _form_of(found) != wanted:
                edge = f"from {self._labels[peer]} to {self._labels[self.rank]}"
                wrong = wrong or [self._mismatch("recv", "returned", edge, wanted, found)]
            elif found.data_ptr() != room.data_ptr():  # it did not use the allocator
                room.copy_(found)
        if wrong:
            raise wrong.pop()  # no local name may hold it: it will hold this frame

    def broadcast(self, tensors: Sequence[Any], root: int) -> None:
        """Send the tensors of a rank to each of the others in turn; see ``Communicator``."""
        self._check_root(root, tensors)
        if self.rank != root:
            self.recv(tensors, root)
            return
        for peer in range(self.size):
            if peer != root:
                self.send(tensors, peer)

    def allreduce(self, tensor: Any, op: ReduceOp) -> None:
        """Combine the tensors of all ranks, in place; see ``Communicator``."""
        check_tensors((tensor,))
        given = self._take_reserved(tensor.shape, tensor.dtype)
        if given is None:
            given = tensor.new_empty(tensor.shape)
        given.copy_(tensor.detach())
        self._collective("allreduce", given, tensor, self._ops[op.name])

    def allgather(self, output: Any, tensor: Any) -> None:
        """Put the tensors of all ranks one after another; see ``Communicator``."""
        self._check_collected(output, tensor)
        self._collective("allgather", tensor, output)

    def reducescatter(self, output: Any, tensor: Any, op: ReduceOp) -> None:
        """Combine the tensors of all ranks, and give each its part; see ``Communicator``."""
        self._check_collected(tensor, output)
        self._collective("reducescatter", tensor, output, self._ops[op.name])

    def reduce(self, tensor: Any, root: int, op: ReduceOp) -> None:
        """Combine the tensors of all ranks everywhere; see ``Communicator``."""
        self._check_root(root, (tensor,))
        self.allreduce(tensor, op)

    def gather(self, output: Any | None, tensor: Any, root: int) -> None:
        """Put the tensors of all ranks one after another, everywhere; see ``Communicator``."""
        self._check_gather(output, tensor, root)
        if self.rank != root or output is None:
            output = self._take_reserved(self._gathered_shape(tensor), tensor.dtype)
            if output is None:
                output = tensor.new_empty(self._gathered_shape(tensor))
        self.allgather(output, tensor)

    def _gathered_shape(self, tensor: Any) -> tuple[int, ...]:
        return (self.size * tensor.shape[0], *tensor.shape[1:])

    def _take_reserved(self, shape: Sequence[int], dtype: Any) -> Any:
        """Return the reserved tensor that comes next, if it has this form."""
        found = self._reserved.pop(0) if self._reserved else None
        is_right = found is not None and (tuple(found.shape), found.dtype) == (tuple(shape), dtype)
        return found if is_right else None

    def barrier(self) -> None:
        """Gather one number of each rank, which returns when every rank has called it."""
        import torch

        number = torch.zeros(1, device=self._device)
        self.allgather(torch.zeros(self.size, device=self._device), number)

    def abort(self, why: str) -> None:
        """Refuse later operations, and destroy the object on a thread; see ``Communicator``."""
        if not self._refusal.abort(why):
            return
        name = f"rcg-abort-{self.group}"
        thread = threading.Thread(target=self._destroy_quietly, name=name, daemon=True)
        try:
            start_thread(thread, "to end a communicator")
        except OutOfThreads:
            self._destroy_quietly()

    def destroy(self) -> None:
        """Destroy the object; idempotent."""
        self._refusal.destroy()
        self._destroy_once()

    def _destroy_quietly(self) -> None:
        with shielding():
            self._destroy_once()

    def _destroy_once(self) -> None:
        for rays in self._undestroyed:  # by the first thread alone
            rays.destroy()

    def _collective(self, name: str, source: Any, target: Any, *args: Any) -> None:
        """Call a method of the object that fills a tensor, and check what it made of it."""
        wanted, room = _form_of(target), target.detach()
        returned = self._call(name, source, target, *args)
        where = f"at {self._labels[self.rank]}"
        if _form_of(target) != wanted:
            raise self._mismatch(name, "made its output", where, wanted, target)
        if target.data_ptr() != room.data_ptr():
            room.copy_(target)
        if hasattr(type(returned), "untyped_storage") and _form_of(returned) != wanted:
            raise self._mismatch(name, "returned", where, wanted, returned)

    def _mismatch(
        self, name: str, did: str, where: str, wanted: _Form, found: Any
    ) -> TensorMismatch:
        form = _form_of(found)
        text = str(form) if form.dtype else f"a value of type {form.device}"
        return TensorMismatch(
            f"{name} of {type(self._rays).__name__}, the communicator of {self.group}, {did} "
            f"{text} {where}, where {wanted} was asked for: fill the tensor that it is given, or "
            "that its allocator returns",
            expected=str(wanted),
            found=text,
        )

    def _call(self, name: str, *args: Any) -> Any:
        """Call a method of the object; its exceptions become ours, with the cause."""
        if self._refusal.errors:
            raise self._refusal.error()
        try:
            return getattr(self._rays, name)(*args)
        except Exception as error:
            kind = type(self._rays).__name__
            self._refusal.fail(f"{name} of {kind} failed: {describe_error(error)}")
            raise self._refusal.error() from error


class _Form(NamedTuple):
    """What the tensor that an object returns must be like; of another value, only its type."""

    dtype: str
    shape: tuple[int, ...]
    device: str

    def __str__(self) -> str:
        on = "" if self.device == "cpu" else f" on {self.device}"
        return f"a tensor of {self.dtype} {list(self.shape)}{on}"


def _form_of(value: Any) -> _Form:
    if not hasattr(type(value), "untyped_storage"):
        return _Form("", (), type(value).__name__)
    # Imported here, where torch is loaded: a process that only binds a DAG needs no NumPy.
    from rcg.serialization.tensors import lacking

    dtype, where = str(value.dtype).removeprefix("torch."), str(value.device.type)
    if str(value.layout) != "torch.strided":
        where += f", of the layout {value.layout},"
    elif lacking(value):  # torch would read it all the same
        where += ", without its memory,"
    return _Form(dtype, tuple(value.shape), where)


def _allocator_of(tensor: Any) -> Callable[..., Any]:
    """Return what the object calls to allocate: it gets the tensor to be filled."""

    def allocate(shape: Any, dtype: Any) -> Any:
        return tensor if tuple(shape) == tuple(tensor.shape) and dtype == tensor.dtype else None

    return allocate


def _ops_of(communicator: Any) -> dict[str, Any]:
    """Return the operations that the object's class compares with, by name.

    It is the enumeration of the default argument of ``allreduce``, or of the name ``ReduceOp`` in
    the module of the class, or Ray's, if the class inherits from Ray's. Otherwise it is ours.
    """
    signature = shielded(lambda: inspect.signature(communicator.allreduce), otherwise=None)
    candidates: list[Any] = []
    if signature is not None:
        candidates += [type(parameter.default) for parameter in signature.parameters.values()]
    for cls in type(communicator).__mro__:
        candidates.append(getattr(sys.modules.get(cls.__module__), "ReduceOp", None))
    for found in candidates:
        if isinstance(found, type) and issubclass(found, Enum):
            members = {member.name: member for member in found}
            if "SUM" in members:
                return {op.name: members.get(op.name, op) for op in ReduceOp}
    return {op.name: op for op in ReduceOp}
