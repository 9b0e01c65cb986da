# SPDX-License-Identifier: Apache-2.0
"""The nodes that users write a DAG with.

Each node wraps a record (``rcg.dag.records``). It adds the syntax (``inp[0]``, ``with``) and the
methods that run and compile a DAG. Making a node does nothing on the cluster.

The compiler and what drives a graph are imported when a DAG is compiled: every actor whose module
writes DAGs imports this one, which together with Ray takes half the CPU time without them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, Unpack

from rcg.callers import at_users_line
from rcg.dag.hints import Choice, TorchTensorType, choice_of, tensor_hint
from rcg.dag.records import (
    AttributeRecord,
    CallRecord,
    InputRecord,
    OutputsRecord,
    PartRecord,
    Record,
    ResultRecord,
    TaskRecord,
    ValueRecord,
    common_source,
    find_site,
    label_of,
    maker_of,
)
from rcg.errors import GraphError, UnsupportedNodeError
from rcg.ir.nodes import Site

if TYPE_CHECKING:
    from rcg.dag.compile import CompileKeywords
    from rcg.runtime.driver.compiled_dag import CompiledDAG


class DAGNode:
    """Base class of all nodes. ``InputNode()``, ``MultiOutputNode()`` and ``bind`` make nodes."""

    _record: Record

    def __init__(
        self,
        record: Record,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] = {},
        options: Mapping[str, Any] = {},
    ) -> None:
        self._record = record
        self._given = args, kwargs, options

    def get_args(self) -> Sequence[Any]:
        """Return the positional arguments that the node was bound with."""
        return self._given[0]

    def get_kwargs(self) -> dict[str, Any]:
        """Return the keyword arguments that the node was bound with."""
        return dict(self._given[1])

    def get_options(self) -> dict[str, Any]:
        """Return the options of the method, function or class that the node was bound with."""
        return dict(self._given[2])

    @at_users_line
    def compile(self, **options: Unpack[CompileKeywords]) -> CompiledDAG:
        """Compile everything that this node depends on, and start it on its actors.

        The same node may be compiled several times; the compiled DAGs are independent.

        Args:
            **options: All optional; ``help(rcg.dag.compile.CompileKeywords)`` lists them.

        Returns:
            The compiled DAG. Use it in a ``with`` block, or call its ``teardown``.

        Raises:
            TypeError: There is no such option.
            ValueError: An option's value is out of range.
            GraphError: The DAG is wrong; the error names the node and where it was bound.
            CompileError: The DAG is right but cannot be compiled for these actors.
            ActorDiedError: An actor is dead.
            ChannelTimeout: An actor did not answer in time.
        """
        return _compile(self._record, options, "compile")

    @at_users_line
    def experimental_compile(self, **options: Unpack[CompileKeywords]) -> CompiledDAG:
        """Compile the DAG; Ray's name for ``compile``."""
        return _compile(self._record, options, "experimental_compile")

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Run the DAG once without compiling it, every call as an ordinary Ray task.

        Each node that this one needs runs once. Class nodes make their actors anew each time, which
        end after their last call if nothing holds a handle. A collective is a task as well, which
        combines the tensors of all ranks in their order; ``rcg.dag.interpret`` says when the result
        is the same to the last bit as in the compiled DAG. Does not wait for the result.

        Returns:
            The ObjectRef of this node's value; for a ``MultiOutputNode`` a list of them; for a
            ``ClassNode`` the handle of the actor.

        Raises:
            ValueError: The arguments are not those that the DAG takes.
        """
        found = importlib.import_module("rcg.dag.interpret")
        return found.interpret(self._record, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        raise no_attribute(self, name)

    def __iter__(self) -> NoReturn:
        # Without this, Python would iterate over an input as `inp[0]`, `inp[1]`, ... without end.
        raise TypeError(
            f"{self!r} is one value and cannot be taken apart here. A method that returns k "
            "values is declared with @rcg.method(num_returns=k) or called with "
            ".options(num_returns=k).bind(...); parts of the input are inp[0], inp['name']."
        )

    def __reduce__(self) -> NoReturn:
        raise GraphError(
            f"{self!r} is a node of a DAG, not a value, and cannot be pickled. It was passed to "
            "a task, put into an object that travels with an argument, or bound to a plain Ray "
            "handle (use rcg.wrap_actor(handle)). Pass it to bind() as an argument, or in a list, "
            "a tuple or the values of a dict; another process gets a compiled DAG.",
            node=self._record.name,
            site=self._record.site,
        )

    def __repr__(self) -> str:
        return label_of(self._record)


class ValueNode(DAGNode):
    """Base class of the nodes that have a value: all but ``MultiOutputNode``."""

    _record: ValueRecord

    @at_users_line
    def with_tensor_transport(
        self,
        transport: Any = "auto",
        device: Any = "default",
        _static_shape: bool = False,
        _direct_return: bool = False,
        *,
        keep: bool = False,
    ) -> Self:
        """Choose how the tensors in this node's value travel to other processes.

        A later choice replaces an earlier one. On the whole input it is for all parts of the input
        that have none of their own. An edge that begins or ends in the driver uses shared memory,
        whatever the choice.

        With ``keep``, the tensors of an output stay with the actor that made them. The result is a
        ``TensorRef``, as an ordinary call of a method with a ``tensor_transport`` returns it::

            out = model.step.bind(inp).with_tensor_transport("auto", keep=True)
            ref = rcg.get(out.compile().execute(x))  # a TensorRef; its tensors have not moved

        Args:
            transport: ``"auto"`` (shared memory on a node), ``"shm"``, ``"gloo"``, the name of a
                registered communicator, or a communicator with the methods of Ray's.
            device: Where tensors arrive: ``"default"`` (a device of the type that they were on),
                ``"cpu"``, ``"gpu"`` or ``"cuda"``, or a type of devices that a registered
                communicator serves.
            _static_shape: Whether tensors always have the shapes and dtypes of the first execution.
            _direct_return: Whether the value is always exactly one tensor.
            keep: Whether its tensors stay with the actor, which ``rcg.remote`` must have made.
                ``transport`` is then how they travel later, one of those of
                ``@method(tensor_transport=...)``, and says nothing of the graph's own channels.

        Returns:
            This node.

        Raises:
            GraphError: There is no such transport or device, or not both together; or nothing can
                be kept: this is an input, or the actor is not one of rcg's.
        """
        if keep:
            if device != "default" or _static_shape or _direct_return:
                self._refuse_keep("the graph does not move what is kept: give only a transport")
            return self._keep(transport)
        return self._with_hint(Choice(transport, device, bool(_static_shape), bool(_direct_return)))

    @at_users_line
    def with_type_hint(self, type_hint: TorchTensorType) -> Self:
        """Choose how tensors travel with a ``TorchTensorType``; see ``with_tensor_transport``.

        Raises:
            GraphError: It is no ``TorchTensorType``, or there is no such transport or device.
        """
        choice = choice_of(type_hint)
        if choice is None:
            raise GraphError(
                "with_type_hint() takes a TorchTensorType of "
                f"rcg.experimental.channel.torch_tensor_type, got {type_hint!r}",
                node=self._record.name,
                site=find_site(),
            )
        return self._with_hint(choice)

    def _keep(self, transport: Any) -> Self:
        record = self._record
        if isinstance(record, InputRecord | AttributeRecord):
            self._refuse_keep("it is for what an actor makes, and this is an input")
        if isinstance(record, TaskRecord):
            self._refuse_keep("it is for what an existing actor makes, in a compiled DAG")
        calls = importlib.import_module("rcg.rdt.calls")
        try:
            record.cell.kept = calls.check_keeps(maker_of(record).handle, transport)
        except ValueError as error:
            self._refuse_keep(str(error))
        return self

    def _refuse_keep(self, why: str) -> NoReturn:
        name = self._record.name
        raise GraphError(
            f"with_tensor_transport(keep=True) on {name}: {why}", node=name, site=find_site()
        )

    def _with_hint(self, choice: Choice) -> Self:
        record = self._record
        hint = tensor_hint(
            choice,
            is_input=isinstance(record, InputRecord | AttributeRecord),
            node=record.name,
            site=find_site(),
        )
        record.cell.kept, record.cell.hint = None, hint
        return self


class InputNode(ValueNode):
    """The input of a DAG: a placeholder for the arguments of ``execute``.

    Bound directly, it is the only positional argument. ``inp[0]`` and ``inp[1]`` are one of several
    positional arguments, ``inp["x"]`` or ``inp.x`` a keyword argument. A DAG uses the input either
    directly or by its parts.

    Args:
        *args: None are allowed.
        input_type: Accepted for compatibility with Ray and ignored.
        **kwargs: None are allowed.

    Raises:
        GraphError: Arguments were passed; they belong to ``execute``.
    """

    _record: InputRecord

    @at_users_line
    def __init__(self, *args: Any, input_type: Any = None, **kwargs: Any) -> None:
        site = find_site()
        if args or kwargs:
            raise GraphError(
                "InputNode should not take any args or kwargs: it stands for the arguments of "
                "execute()",
                site=site,
            )
        super().__init__(InputRecord(site=site))
        self._attributes: dict[int | str, InputAttributeNode] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    @at_users_line
    def __getitem__(self, key: int | str) -> InputAttributeNode:
        if isinstance(key, bool) or not isinstance(key, int | str):
            text = (
                "Please only use int index or str as first-level key to access fields of dag "
                f"input: found {key!r}"
            )
            raise GraphError(text, node="InputNode", site=find_site())
        if isinstance(key, int) and key < 0:
            text = (
                f"positional arguments of a DAG are counted from 0, found inp[{key}]: write "
                f"inp[n - {-key}] for n arguments"
            )
            raise GraphError(text, node="InputNode", site=find_site())
        return self._attribute(key, "item")

    def __getattr__(self, name: str) -> InputAttributeNode:
        # Pickle, copy and notebooks ask for underscored names, which are never arguments.
        if name.startswith("_") or name in _RESERVED:
            raise no_attribute(self, name)
        return self._attribute(name, "attribute")

    def _attribute(
        self, key: int | str, accessor: Literal["item", "attribute"]
    ) -> InputAttributeNode:
        found = self._attributes.get(key)
        if found is None:
            record = AttributeRecord(
                site=find_site(), source=self._record, key=key, accessor=accessor
            )
            self._record.attributes[key] = record
            found = self._attributes[key] = InputAttributeNode(record)
        return found


class InputAttributeNode(ValueNode):
    """One argument of ``execute``; made by ``inp[0]``, ``inp["x"]`` or ``inp.x``."""

    _record: AttributeRecord

    @property
    def key(self) -> int | str:
        """The position or the name of the argument."""
        return self._record.key


class ClassMethodNode(ValueNode):
    """A call of an actor's method, or one of the values of a call that returns several."""

    _record: CallRecord | TaskRecord | PartRecord

    def get_method_name(self) -> str:
        """Return the name of the method."""
        return self._call.name.rpartition(".")[2]

    @property
    def num_returns(self) -> int | str:
        """How many values the call returns; for a generator ``"streaming"``."""
        call = self._call
        if isinstance(call, CallRecord):
            return call.num_returns
        found: int | str = self.get_options().get("num_returns", 1)
        return found

    @property
    def is_class_method_call(self) -> bool:
        """Whether this is the call itself."""
        return not self.is_class_method_output

    @property
    def is_class_method_output(self) -> bool:
        """Whether this is one of the values of a call that returns several."""
        return isinstance(self._record, PartRecord)

    @property
    def class_method_call(self) -> ClassMethodNode | None:
        """The call that returns several values, of which this is one; None for a call."""
        call: ClassMethodNode | None = self._given[0][0] if self.is_class_method_output else None
        return call

    @property
    def output_idx(self) -> int | None:
        """Which of the values it is; None for a call."""
        return self._record.index if isinstance(self._record, PartRecord) else None

    @property
    def _call(self) -> CallRecord | TaskRecord:
        return self._record.call if isinstance(self._record, PartRecord) else self._record


class CollectiveOutputNode(ValueNode):
    """What one actor gets from a collective; ``rcg.collective`` makes them."""

    _record: ResultRecord


class MultiOutputNode(DAGNode):
    """The outputs of a DAG, for which ``execute`` returns a list, even if there is only one.

    Args:
        args: The nodes whose values to return, in order; the same node may appear twice.

    Raises:
        GraphError: ``args`` is not a list or tuple, is empty, or contains something else than
            nodes.
    """

    _record: OutputsRecord

    @at_users_line
    def __init__(self, args: Sequence[DAGNode]) -> None:
        site = find_site()
        name = "MultiOutputNode"
        if not isinstance(args, list | tuple):
            raise GraphError(
                f"Invalid input type for `args`, {type(args)}: {name} takes a list or a tuple of "
                "nodes",
                node=name,
                site=site,
            )
        if not args:
            raise GraphError(f"{name} needs at least one node", node=name, site=site)
        outputs = []
        for position, output in enumerate(args):
            record = value_record(output, taker=name, site=site)
            if record is None:
                raise GraphError(
                    f"{name} takes nodes, but found {output!r} at position {position}",
                    node=name,
                    site=site,
                )
            outputs.append(record)
        source = common_source(outputs, taker=name, site=site)
        end = OutputsRecord(site=site, source=source, outputs=tuple(outputs))
        super().__init__(end, list(args))


# These names raise an explanation even on an input, where other names are keywords.
_RESERVED = ("bind", "remote")


def _compile(record: Record, options: CompileKeywords, called: str) -> CompiledDAG:
    compiler = importlib.import_module("rcg.dag.compile")
    found: CompiledDAG = compiler.compile_record(record, options, called)
    return found


def no_attribute(node: DAGNode, name: str) -> AttributeError:
    """Return the error for a reserved name; the words are Ray's if Ray has some."""
    kind = type(node)
    match name:
        case "bind":
            text = f".bind() cannot be used again on {kind}: {node!r} is a node already"
        case "remote":
            text = (
                f".remote() cannot be used on {kind}. To execute the task graph for this node, use "
                ".execute(), or .compile().execute(...) for actors that exist."
            )
        case "with_tensor_transport" | "with_type_hint":
            text = (
                f".{name}() cannot be used on {kind}: {node!r} is the end of a DAG and not a "
                "value. Use it on the nodes in it."
            )
        case _:
            text = f"{kind.__name__!r} object has no attribute {name!r}"
    return AttributeError(text, name=name, obj=node)


def value_record(value: object, *, taker: str, site: Site) -> ValueRecord | None:
    """Return the record of a node whose value can be used; None for any other value.

    Raises:
        GraphError: It is a ``MultiOutputNode``.
        UnsupportedNodeError: It is a node of ``ray.dag``.
    """
    if isinstance(value, DAGNode):
        if not isinstance(value, ValueNode):
            raise GraphError(
                f"{taker} takes {value!r}, which is the end of a DAG and not a value: pass the "
                "nodes in it",
                node=value._record.name,
                site=site,
            )
        return value._record
    if not type(value).__module__.startswith("ray.dag."):
        return None
    kind = type(value).__name__
    raise UnsupportedNodeError(
        "nodes of ray.dag cannot be mixed with rcg's: import InputNode from rcg.dag, bind "
        "functions and classes that rcg.remote made, and methods of rcg's handles "
        f"(rcg.wrap_actor(handle) makes one of Ray's); {taker} takes a {kind}",
        node=kind,
        site=site,
    )
