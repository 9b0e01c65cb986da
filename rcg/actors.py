# SPDX-License-Identifier: Apache-2.0
"""Actors as users see them: Ray's, with ``bind``.

Handles, classes and methods are thin wrappers (composition) of Ray's. They are no subclasses: Ray
serializes a top-level handle by its type, so one that posed as Ray's would arrive unwrapped.

This room stands above ``rcg.dag``: a handle's ``bind`` makes a node, while a node needs only Ray's
handle. It must know nothing of graphs and plans.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn, overload

from rcg import cluster
from rcg.callers import at_users_line
from rcg.dag.authoring import bind_method
from rcg.dag.binding import OWN_OPTIONS
from rcg.dag.nodes import ClassMethodNode, DAGNode
from rcg.dag.tasks import ClassNode, FunctionNode, bind_class, bind_function
from rcg.option_kinds import check_cost_s
from rcg.rdt.actors import DECLARED, declare_targets, declare_transport, derive
from rcg.rdt.calls import (
    hold_until_done,
    lower_arguments,
    lower_constructor_arguments,
    references_in,
    refuse_in_tasks,
    transport_for,
    wrap_results,
)
from rcg.rdt.transports import find_transport
from rcg.refs import refuse_compiled_refs

_MOST_NEAR: Final = 3
_MOST_METHODS: Final = 8
_OWN_DECLARATIONS: Final = OWN_OPTIONS | {"receive_into"}

Nodes = ClassMethodNode | tuple[ClassMethodNode, ...]


# --- handles ----------------------------------------------------------------------------------


class ActorHandle:
    """A handle of an actor: Ray's, with methods that also ``bind``.

    Prints, compares, hashes and pickles as Ray's handle does. Users get it from
    ``ActorClass.remote``, ``get_actor`` and ``wrap_actor``.

    Args:
        ray_handle: Ray's handle.
    """

    def __init__(self, ray_handle: Any) -> None:
        self._ray_handle = ray_handle

    def __getattr__(self, name: str) -> Any:
        if name == "_ray_handle" or (_is_special(name) and name not in cluster.CALLED):
            raise _no_attribute(self, name)
        try:
            found = getattr(self._ray_handle, name)
        except AttributeError:
            error = self._no_method(name)
            try:
                raise error from None
            except AttributeError:
                error.__traceback__ = None  # it ends at the user's line; see ``end_at_caller``
                raise
        if cluster.is_actor_method(found):
            return ActorMethod(self._ray_handle, name, found)
        # Other attributes of Ray's handle, for code that uses them.
        return found

    def __dir__(self) -> list[str]:
        return list(dir(self._ray_handle))

    def _no_method(self, name: str) -> AttributeError:
        """Return the error that says which methods there are, those of near names first."""
        known = [each for each in dir(self._ray_handle) if not each.startswith(("_", "rcg_"))]
        near = difflib.get_close_matches(name, known, n=_MOST_NEAR)
        text = f"{cluster.actor_label(self._ray_handle)!r} has no method {name!r}: "
        if near:
            text += f"did you mean {' or '.join(map(repr, near))}?"
        else:
            text += f"it has {', '.join(map(repr, known[:_MOST_METHODS])) or 'none'}"
            text += f" and {len(known) - _MOST_METHODS} more" * (len(known) > _MOST_METHODS)
        return AttributeError(text, name=name)  # without `obj`, of which Python would suggest

    def __repr__(self) -> str:
        return repr(self._ray_handle)

    def __hash__(self) -> int:
        return hash(self._ray_handle)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ActorHandle):
            other = other._ray_handle
        return bool(self._ray_handle == other)

    def __reduce__(self) -> tuple[Any, ...]:
        # Ray pickles its own handle, because it counts the references to it.
        return wrap_actor, (self._ray_handle,)


class ActorMethod:
    """A method of an actor, to be called with ``remote`` or put into a DAG with ``bind``."""

    def __init__(self, ray_handle: Any, name: str, ray_method: Any) -> None:
        self._handle = ray_handle
        self._name = name
        self._method = ray_method

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise TypeError: an actor's methods are called with ``remote``, or bound into a DAG."""
        remote = f"'object.{self._name}.remote()'"
        bind = f"'object.{self._name}.bind()'"
        if any(issubclass(type(each), DAGNode) for each in (*args, *kwargs.values())):
            instead = f"try {bind}: an argument is a node of a DAG"
        else:
            instead = f"try {remote}, or {bind} in a DAG"
        raise TypeError(
            "Actor methods cannot be called directly. Instead of running "
            f"'object.{self._name}()', {instead}."
        )

    @at_users_line
    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method as an ordinary Ray task; returns its ObjectRef (or one per value).

        A method with a ``tensor_transport`` returns a ``TensorRef``: the tensors of its value stay
        in the actor.

        Raises:
            TypeError: The arguments do not fit, or one is a reference of a compiled DAG.
            ValueError: Tensors cannot be passed so: an actor is in no group, or in several.
        """
        return _call(self._handle, self._name, self._method, args, kwargs)

    @at_users_line
    def bind(self, *args: Any, **kwargs: Any) -> Nodes:
        """Put a call of the method into a DAG; nothing runs yet.

        On each actor, bound calls run in the order in which they were bound.

        Args:
            *args: Nodes, constants, and lists, tuples or dicts (their values) with nodes inside.
            **kwargs: The keyword arguments, of the same kinds.

        Returns:
            The node, or a tuple of k nodes if the method returns k values.

        Raises:
            SignatureError: The arguments do not fit the method.
            GraphError: A node is in a place that rcg does not support, or depends on another input.
            UnsupportedNodeError: The method is a generator, or a node is not rcg's.
            TypeError: An argument is a reference of a compiled DAG.
        """
        refuse_compiled_refs((*args, *kwargs.values()))
        return bind_method(self._handle, self._name, args, kwargs, {})

    def options(self, **options: Any) -> BoundOptions:
        """Return the method with options of a call set.

        Args:
            **options: Ray's (``num_returns=2``, ...), ``cost_s``: how long this call takes, in
                seconds, for the schedule of a compiled graph; and ``tensor_transport``: how the
                tensors of its value travel, which stay in the actor.

        Raises:
            ValueError: There is no such transport.
        """
        if options.get("tensor_transport") is not None:
            find_transport(options["tensor_transport"])
        rays = {name: value for name, value in options.items() if name not in OWN_OPTIONS}
        return BoundOptions(self, self._method.options(**rays), options)

    def __getattr__(self, name: str) -> Any:
        if name in ("_handle", "_method", "_name") or _is_special(name):
            raise _no_attribute(self, name)
        return getattr(self._method, name)

    def __repr__(self) -> str:
        return f"ActorMethod({self._handle!r}.{self._name})"

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (ActorHandle(self._handle), self._name)


class BoundOptions:
    """A method of an actor with options set; what ``actor.method.options(...)`` returns."""

    def __init__(self, method: ActorMethod, ray_options: Any, options: Mapping[str, Any]) -> None:
        self._method = method
        self._ray_options = ray_options
        self._options = dict(options)

    @at_users_line
    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method; see ``ActorMethod.remote``."""
        method = self._method
        return _call(method._handle, method._name, self._ray_options, args, kwargs, self._options)

    @at_users_line
    def bind(self, *args: Any, **kwargs: Any) -> Nodes:
        """Put a call into a DAG; see ``ActorMethod.bind``."""
        refuse_compiled_refs((*args, *kwargs.values()))
        return bind_method(self._method._handle, self._method._name, args, kwargs, self._options)


def _call(
    handle: Any,
    name: str,
    ray_method: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: Mapping[str, Any] = {},
) -> Any:
    """Call a method of an actor."""
    refuse_compiled_refs((*args, *kwargs.values()))
    taken = references_in(args, kwargs)
    if taken:
        args, kwargs = lower_arguments(args, kwargs, handle, name)
    asked, transport = options.get("tensor_transport"), None
    count = options.get("num_returns")
    declared = cluster.actor_method_transport(handle, name)
    if taken or asked is not None or declared:
        if count is None:
            count = cluster.actor_method_num_returns(handle, name)
        if taken and count == 0:
            # What it takes is held until it has a result: one that nobody sees.
            rays = {key: value for key, value in options.items() if key not in OWN_OPTIONS}
            ray_method = getattr(handle, name).options(**{**rays, "num_returns": 1})
        transport = transport_for(handle, name, declared, asked, count)
    if transport is None:
        made = ray_method.remote(*args, **kwargs)
    else:
        made = ray_method.remote(*args, **kwargs, **{cluster.HIDDEN_KEYWORD: transport})
    if taken:
        hold_until_done(taken, made, lambda: f"{cluster.actor_label(handle)}.{name}", handle)
        if count == 0:
            return None
    return made if transport is None else wrap_results(made, transport, handle)


def _create(ray_class: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ActorHandle:
    """Create an actor."""
    taken = references_in(args, kwargs)
    if not taken:
        return wrap_actor(ray_class.remote(*args, **kwargs))
    args, kwargs = lower_constructor_arguments(args, kwargs)
    made = ray_class.remote(*args, **kwargs)
    hold_until_done(taken, cluster.probe(made), lambda: "the constructor of an actor")
    return wrap_actor(made)


def wrap_actor(handle: Any) -> ActorHandle:
    """Return a handle with ``bind`` for Ray's handle; a handle of rcg's is returned unchanged.

    Raises:
        TypeError: ``handle`` is not a handle of an actor.
        PlacementError: It belongs to a Ray Client connection.
    """
    if isinstance(handle, ActorHandle):
        return handle
    cluster.refuse_client(handle)
    if not cluster.is_actor_handle(handle):
        raise TypeError(f"wrap_actor() takes a handle of an actor, got {type(handle).__name__}")
    return ActorHandle(handle)


def unwrap(handle: Any) -> Any:
    """Return Ray's own handle, for code that needs it; Ray's handles are returned unchanged.

    Raises:
        TypeError: ``handle`` is not a handle of an actor.
    """
    if isinstance(handle, ActorHandle):
        return handle._ray_handle
    if not cluster.is_actor_handle(handle):
        raise TypeError(f"unwrap() takes a handle of an actor, got {type(handle).__name__}")
    return handle


def get_actor(name: str, namespace: str | None = None) -> ActorHandle:
    """Return a handle of a named actor.

    Raises:
        ValueError: There is no actor of that name in the namespace.
    """
    return wrap_actor(cluster.get_actor(name, namespace))


def kill(actor: Any, *, no_restart: bool = True) -> None:
    """Kill an actor at once; takes rcg's handles and Ray's.

    Compiled DAGs that the actor is part of end with an ``ActorDiedError``.

    Raises:
        ValueError: ``actor`` is not a handle of an actor.
    """
    handle = actor._ray_handle if isinstance(actor, ActorHandle) else actor
    cluster.kill(handle, no_restart=no_restart)


# --- classes and functions --------------------------------------------------------------------


class ActorClass:
    """An actor class, as ``remote`` makes it: Ray's, but the handles of its actors have ``bind``.

    Args:
        ray_class: Ray's actor class.
    """

    def __init__(self, ray_class: Any, bases: Any = None, namespace: Any = None) -> None:
        if bases is not None:
            # `class B(A)` with an actor class A calls this as a metaclass. Ray's error explains it.
            plain = tuple([_ray_class_of(base) for base in bases])
            actor_class = next(base for base in plain if cluster.is_actor_class(base))
            type(actor_class)(ray_class, plain, namespace)
        if not cluster.is_actor_class(ray_class):
            raise TypeError(
                f"ActorClass() takes an actor class of Ray's, found {ray_class!r}: rcg.remote "
                "makes one of a class"
            )
        self._ray_class = ray_class

    @property
    def __class__(self) -> type:
        """What Ray's says: as there, ``isinstance`` knows the user's class and its bases."""
        return type(self._ray_class)

    @__class__.setter
    def __class__(self, _: type) -> NoReturn:
        raise TypeError(f"the class of {self!r} cannot be changed")

    def remote(self, *args: Any, **kwargs: Any) -> ActorHandle:
        """Create an actor; returns its handle at once.

        Raises:
            TypeError: The arguments do not fit the constructor, or one is a reference of a
                compiled DAG.
            PlacementError: This process is connected by Ray Client.
        """
        refuse_compiled_refs((*args, *kwargs.values()))
        return _create(self._ray_class, args, kwargs)

    def options(self, **options: Any) -> ActorClassOptions:
        """Return the class with Ray's options of an actor (``name="x"``, ...) set."""
        options.pop("enable_tensor_transport", None)  # every actor of rcg can
        return ActorClassOptions(self._ray_class, options)

    @at_users_line
    def bind(self, *args: Any, **kwargs: Any) -> ClassNode:
        """Put the making of an actor into a DAG, which can then only run uncompiled.

        Each ``execute`` makes an actor of its own. Methods of the node have ``bind``.

        Raises:
            GraphError: An argument is the ``InputNode``, or a node is where rcg does not look.
            UnsupportedNodeError: A node is not rcg's.
            TypeError: An argument is a reference of a compiled DAG.
        """
        return _bind_class(self._ray_class, {}, args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise TypeError: ``remote`` creates an actor."""
        raise TypeError(
            f"Actors cannot be instantiated directly. Instead of '{self}()', use '{self}.remote()'."
        )

    def __getattr__(self, name: str) -> Any:
        if name == "_ray_class" or _is_special(name):
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
            )
        # Constants and static methods of the class, as on Ray's.
        return getattr(self._ray_class, name)

    def __str__(self) -> str:
        return type(self._ray_class).__name__.removeprefix("ActorClass(").removesuffix(")")

    def __repr__(self) -> str:
        return f"ActorClass({self})"

    def __reduce__(self) -> tuple[Any, ...]:
        # What the user has set travels, as on Ray's.
        own = {name: each for name, each in vars(self).items() if name != "_ray_class"}
        return ActorClass, (self._ray_class,), own or None


class ActorClassOptions:
    """An actor class with options set; what ``ActorClass.options(...)`` returns."""

    def __init__(self, ray_class: Any, options: Mapping[str, Any]) -> None:
        self._ray_class = ray_class
        self._ray_options = ray_class.options(**options)
        self._options = options

    def remote(self, *args: Any, **kwargs: Any) -> ActorHandle:
        """Create an actor; see ``ActorClass.remote``."""
        refuse_compiled_refs((*args, *kwargs.values()))
        return _create(self._ray_options, args, kwargs)

    @at_users_line
    def bind(self, *args: Any, **kwargs: Any) -> ClassNode:
        """Put the making of an actor into a DAG; see ``ActorClass.bind``."""
        return _bind_class(self._ray_class, self._options, args, kwargs)


@overload
def remote(target: type, /) -> ActorClass: ...
@overload
def remote(target: Callable[..., Any], /) -> Any: ...
@overload
def remote(**options: Any) -> Callable[[Any], Any]: ...
def remote(*args: Any, **options: Any) -> Any:
    """Make an actor class from a class, or a remote function from a function, as Ray does.

    Used as ``@remote``, ``@remote(num_cpus=1)`` or ``remote(SomeClass)``. A function becomes Ray's
    own remote function, whose ``bind`` makes a node of an uncompiled DAG.

    Raises:
        TypeError: What it is applied to is neither a class nor a function.
        ValueError: An option is not one of Ray's or out of range; a function is to keep tensors.
    """
    refuse_in_tasks({**options, "enable_tensor_transport": None})
    is_enabled = options.pop("enable_tensor_transport", None)
    if args or (not options and is_enabled is None):
        # What Ray says of wrong arguments is said by Ray.
        first, *rest = args or (None,)
        plain = derive(first) if isinstance(first, type) else first
        return _dress(cluster.remote(plain, *rest, **options) if args else cluster.remote())
    make = cluster.remote(**options) if options else cluster.remote

    def decorate(target: Any) -> Any:
        if isinstance(target, type):
            if is_enabled is False:
                _refuse_declared(target)
            target = derive(target, keeps_tensors=is_enabled is not False)
        elif is_enabled:
            refuse_in_tasks({"enable_tensor_transport": True})
        return _dress(make(target))

    return decorate


def method(*args: Any, **options: Any) -> Any:
    """Declare options of an actor's method, as Ray does: ``@method(num_returns=2)``.

    Args:
        *args: As Ray's.
        **options: Ray's, and ``cost_s``: how long a call takes, in seconds. The compiler orders
            transfers by it, and predicts a timeline. Calls of which nothing is said count alike.
            And ``tensor_transport``: how the tensors of its value travel. They stay in the actor,
            and calls return a ``TensorRef``. And ``receive_into``: for arguments that are passed by
            reference, the names of the actor's attributes into whose tensors theirs are received:
            ``{"weights": "_weights"}``. Such an attribute is a tensor, or a list of tensors in the
            order of the value's; where it is None, the memory is fresh.

    Raises:
        TypeError: ``cost_s`` is no number; ``receive_into`` is no dict of names.
        ValueError: ``cost_s`` is negative, or more than a million seconds; there is no such
            transport, or no such parameter.
    """
    if _OWN_DECLARATIONS.isdisjoint(options):
        return cluster.method(*args, **options)
    transport = options.pop("tensor_transport", None)
    targets = options.pop("receive_into", None)
    if transport is not None:
        transport = find_transport(transport).name
    has_cost = "cost_s" in options
    cost_s = check_cost_s(options.pop("cost_s"), "cost_s") if has_cost else 0.0

    def declare(function: Any) -> Any:
        declared = cluster.method(**options)(function) if options else function
        if has_cost:
            declared.__rcg_cost_s__ = cost_s
        if targets is not None:
            declare_targets(declared, targets)
        return declared if transport is None else declare_transport(declared, transport)

    return declare


def _dress(made: Any) -> Any:
    """Wrap what Ray's ``remote`` returned."""
    if cluster.is_actor_class(made):
        return ActorClass(made)
    cluster.refuse_client(made)
    if cluster.is_remote_function(made):
        name = getattr(made, "_function_name", "the function")
        made.remote = _with_values(made.remote, name)
        made.bind = _FunctionBind(name, made, cluster.declared_options(made))
        made.options = _with_values_of(made.options, name, cluster.declared_options(made))
    return made


def _with_values(
    remote: Callable[..., Any], name: str, silent: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Return a ``remote`` whose arguments may be references to tensors, for Ray's of a function.

    A function without a result is called by ``silent``, Ray's ``remote`` with a hidden one: the
    arguments are held until that is there.
    """

    @functools.wraps(remote)
    def with_values(*args: Any, **kwargs: Any) -> Any:
        from rcg.rdt.calls import hold_until_done, lower_arguments, references_in

        taken = references_in(args, kwargs)
        if not taken:
            return remote(*args, **kwargs)
        args, kwargs = lower_arguments(args, kwargs)
        made = (silent or remote)(*args, **kwargs)
        hold_until_done(taken, made, lambda: f"the task {name}")
        return None if silent else made

    return with_values


def _with_values_of(
    options: Callable[..., Any], name: str, declared: Mapping[str, Any]
) -> Callable[..., Any]:
    """Return the ``options`` of a function, with such a ``remote``, and a ``bind``."""

    @functools.wraps(options)
    def with_options(**changes: Any) -> Any:
        from rcg.rdt.calls import refuse_in_tasks

        refuse_in_tasks(changes)
        changed = options(**changes)
        silent = None
        if changes.get("num_returns") == 0:
            silent = options(**{**changes, "num_returns": 1}).remote
        changed.remote = _with_values(changed.remote, name, silent)
        changed.bind = _FunctionBind(name, changed, {**declared, **changes})
        return changed

    return with_options


def _refuse_declared(cls: type) -> None:
    """Raise ValueError if methods have a transport, although the class wants none."""
    found = [name for name in dir(cls) if hasattr(getattr(cls, name), DECLARED)]
    if found:
        raise ValueError(
            f"Actor class {cls.__name__} has methods with a tensor_transport "
            f"({', '.join(found)}), but enable_tensor_transport=False: leave that out"
        )


class _FunctionBind:
    """The ``bind`` of a remote function. A class, so that it pickles with the function."""

    __slots__ = ("_function", "_name", "_options")

    def __init__(self, name: str, function: Any, options: Mapping[str, Any]) -> None:
        self._name = name.rpartition(".")[2]
        self._function = function
        self._options = options

    @at_users_line
    def __call__(self, *args: Any, **kwargs: Any) -> FunctionNode:
        return bind_function(self._name, self._function.remote, args, kwargs, self._options)


def _bind_class(
    ray_class: Any, options: Mapping[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> ClassNode:
    maker = ray_class.options(**options) if options else ray_class

    def create(*args: Any, **kwargs: Any) -> ActorHandle:
        return _create(maker, args, kwargs)

    options = {**cluster.declared_options(ray_class), **options}
    return bind_class(cluster.plain_class(ray_class), create, args, kwargs, options)


def _ray_class_of(base: Any) -> Any:
    return base._ray_class if isinstance(base, ActorClass) else base


def _no_attribute(thing: object, name: str) -> AttributeError:
    text = f"{type(thing).__name__!r} object has no attribute {name!r}"
    return AttributeError(text, name=name, obj=thing)


def _is_special(name: str) -> bool:
    """Names that Python, pickle and notebooks look for; Ray's own start with ``__ray_``."""
    return name.startswith("__") and not name.startswith("__ray_")
