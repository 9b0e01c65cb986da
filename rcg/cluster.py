# SPDX-License-Identifier: Apache-2.0
"""Ray as rcg uses it: one named function for each use of the cluster.

Besides the error tree this is the only room that imports Ray, so changes of a new release are
handled here. It uses Ray's public core. If Ray has no public way to get a fact (the signatures of a
handle's methods), it reads a semi-public attribute that several releases share, and the function's
docstring says what it returns without it. Every handle here is Ray's own; this room must know
nothing of graphs and channels.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import gc
import importlib
import importlib.util
import inspect
import re
import sys
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

import ray
import ray.actor
import ray.exceptions
import ray.remote_function
from ray import cloudpickle

from rcg.errors import PlacementError

# How Ray names the thread of an async actor's event loop, and how long to wait for a busy loop.
_T = TypeVar("_T")
_LOOP_THREAD: Final = "AsyncIO Thread: default"
_IN_INIT: Final = "in its creation task"  # what Ray says if an actor's `__init__` raised
_STYLES: Final = re.compile(r"\x1b\[[\d;]*m")  # of terminals
_LOOP_NAME_TIMEOUT_S: Final = 5.0

# Ray adds this parameter to the methods of an actor when it traces; users never pass it.
_TRACE_PARAMETER = "_ray_trace_ctx"

CALLED: Final = frozenset({"__call__", "__contains__", "__getitem__", "__len__", "__setitem__"})
"""Special methods of actors that may be called from elsewhere."""

# ``rcg.rdt.actors`` adds these; users do not pass them.
HIDDEN_KEYWORD: Final = "_rcg_tensor_transport_"
"""A keyword of the methods of rcg's actors: the name of a tensor transport, or ""."""
SECRET_KEYWORD: Final = "_rcg_secret_"
"""A keyword of the constructors of rcg's actors, whose default is the secret of their class."""

# `Actor(Stage, 05224b2e...)`: how Ray has printed a handle in every release so far.
_HANDLE_TEXT = re.compile(r"Actor\((?P<label>.*), (?P<id>[0-9a-f]+)\)")


# --- this process -----------------------------------------------------------------------------


def ray_version() -> str:
    """Return the version of the installed Ray."""
    return str(ray.__version__)


def node_id() -> str:
    """Return the id of the node this process runs on, in hex. Connects to Ray if need be."""
    return str(ray.get_runtime_context().get_node_id())


def gpu_ids(kind: str = "GPU") -> list[str]:
    """Return the GPUs that Ray has given to this process, by their numbers on the node.

    Args:
        kind: Ray's name for devices of another kind.
    """
    return list(map(str, ray.get_runtime_context().get_accelerator_ids().get(kind, ())))


def is_connected() -> bool:
    """Return whether this process is part of a cluster; most of Ray's calls would start one."""
    return bool(ray.is_initialized())


def session() -> str:
    """Return what tells a session of this process from its others; "" outside of a cluster."""
    if not is_connected():
        return ""
    context = ray.get_runtime_context()
    return f"{context.get_node_id()}/{context.get_job_id()}"


def node_ip() -> str:
    """Return the address of the node this process runs on."""
    return str(ray.util.get_node_ip_address())


def has_other_nodes() -> bool:
    """Whether the cluster has more nodes than the one this process runs on."""
    return bool(other_nodes())


def other_nodes() -> list[str]:
    """Return the ids of the nodes of the cluster that live, in hex, but that of this process."""
    own = node_id()
    alive = [str(each["NodeID"]) for each in ray.nodes() if each.get("Alive")]
    return [each for each in alive if each != own]


def run_on_node(node: str, function: Callable[..., Any], /, *args: Any) -> Any:
    """Run a function in a task on a node, by its id in hex; returns the ObjectRef of its result.

    The function is importable there, and may run twice.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    return _task_of(function).options(scheduling_strategy=strategy).remote(*args)


@functools.cache
def _task_of(function: Callable[..., Any]) -> Any:
    """Return a task, of which a cluster learns once: another one would be another function."""
    return ray.remote(num_cpus=0)(function)


def is_node_gone(error: BaseException) -> bool:
    """Return whether the error of a task on a node says that the node is not there (any more)."""
    gone = ray.exceptions.TaskUnschedulableError, ray.exceptions.NodeDiedError
    return isinstance(error, gone)


def current_actor_id() -> str | None:
    """Return the id, in hex, of the actor this process is; None in a driver or a task."""
    if not is_connected():
        return None
    found = ray.get_runtime_context().get_actor_id()
    return None if found is None else str(found)


def cancel(ref: Any, **options: Any) -> Any:
    """Cancel the call that makes an ObjectRef's value; ``options`` are Ray's."""
    return ray.cancel(ref, **options)


def is_in_task() -> bool:
    """Return whether this process runs tasks, and is no actor."""
    context = ray.get_runtime_context()
    return bool(context.worker.mode == ray.WORKER_MODE and current_actor_id() is None)


def current_actor() -> Any | None:
    """Return Ray's handle of the actor this process is; None in a driver or a task."""
    return None if current_actor_id() is None else ray.get_runtime_context().current_actor


def is_exiting() -> bool:
    """Return whether this process is an actor in which ``exit_actor`` was called."""
    if current_actor_id() is None:
        return False
    worker = getattr(ray.get_runtime_context(), "worker", None)
    ask = getattr(getattr(worker, "core_worker", None), "get_current_actor_should_exit", None)
    return ask is not None and bool(ask())


def current_actor_instance() -> Any | None:
    """Return the instance of the actor this process is; None in a driver or a task.

    An actor that compiles a graph it takes part in is busy with that call, so it cannot be asked
    through Ray for its own instance. It is read from the runtime context's worker; where Ray has
    none there, it is found among the objects alive: a process holds one actor.
    """
    own = current_actor_id()
    if own is None:
        return None
    worker = getattr(ray.get_runtime_context(), "worker", None)
    for key, instance in getattr(worker, "actors", {}).items():
        if key.hex() == own:
            return instance
    for candidate in gc.get_objects():
        if "__ray_actor_class__" in vars(type(candidate)):
            return candidate
    return None


def actor_event_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs the ``async def`` methods of the actor that this process is.

    Ray has no public way to ask for it. So the loops that run in this process are found among the
    objects alive; if there are several, Ray's is the one whose thread has the name that Ray gives.
    None if it cannot be found.
    """
    try:
        return asyncio.get_running_loop()  # called on it
    except RuntimeError:
        pass
    running = [
        candidate
        for candidate in gc.get_objects()
        if issubclass(type(candidate), asyncio.AbstractEventLoop) and candidate.is_running()
    ]
    if len(running) > 1:
        running = [loop for loop in running if _thread_of(loop).startswith(_LOOP_THREAD)]
    return running[0] if len(running) == 1 else None


def _thread_of(loop: asyncio.AbstractEventLoop) -> str:
    """Return the name of the thread that runs a loop; "" if it does not answer."""

    async def name() -> str:
        return threading.current_thread().name

    try:
        return asyncio.run_coroutine_threadsafe(name(), loop).result(_LOOP_NAME_TIMEOUT_S)
    except concurrent.futures.TimeoutError:
        return ""


def shutdown(**options: Any) -> None:
    """Disconnect from the cluster; ``options`` are Ray's."""
    ray.shutdown(**options)


def attribute(name: str, *, of: str = "ray") -> Any:
    """Return what Ray's module ``of`` calls ``name``, for names that rcg leaves to Ray.

    A module that Ray does not import by itself, such as ``ray.serve``, is imported: after
    ``from rcg import serve`` Python looks for the name here and not among Ray's modules.

    Raises:
        AttributeError: This Ray has no such module, or no such name in it.
        ImportError: The module ``name`` is there but needs something that is not installed.
    """
    try:
        module = importlib.import_module(of)
    except ImportError:
        raise AttributeError(f"this Ray ({ray_version()}) has no {of}.{name}") from None
    try:
        return getattr(module, name)
    except AttributeError:
        if not hasattr(module, "__path__") or not importlib.util.find_spec(f"{of}.{name}"):
            raise
    return importlib.import_module(f"{of}.{name}")


def attribute_names(*, of: str = "ray") -> list[str]:
    """Return the public names of Ray's module ``of``; none where this Ray does not have it."""
    try:
        names = dir(importlib.import_module(of))
    except ImportError:
        return []
    return [name for name in names if not name.startswith("_")]


# --- telling things apart ---------------------------------------------------------------------


def is_actor_handle(thing: object) -> bool:
    """Return whether this is a handle of Ray's own."""
    return isinstance(thing, ray.actor.ActorHandle)


def is_actor_class(thing: object) -> bool:
    """Return whether this is what Ray's ``remote`` makes of a class."""
    return isinstance(thing, ray.actor.ActorClass)


def is_actor_method(thing: object) -> bool:
    """Return whether this is a method of one of Ray's handles."""
    return isinstance(thing, ray.actor.ActorMethod)


def is_remote_function(thing: object) -> bool:
    """Return whether this is what Ray's ``remote`` makes of a function."""
    return isinstance(thing, ray.remote_function.RemoteFunction)


class RefType(type):
    """The type of the classes of references, of which Ray's functions show the ``repr``."""

    def __repr__(cls) -> str:
        return (
            f"<class '{cls.__module__}.{cls.__qualname__}'> (a reference of rcg, which Ray's own "
            "functions do not take: call rcg's, or `import rcg as ray`)"
        )


def is_object_ref(thing: object) -> bool:
    """Return whether this is a reference to an object in Ray's store."""
    return isinstance(thing, ray.ObjectRef)


def refuse_client(thing: object) -> None:
    """Raise ``PlacementError`` for a handle of a Ray Client (``ray://``) connection.

    A client has no process of its own in the cluster, so shared memory cannot reach it.
    """
    if any(base.__module__.startswith("ray.util.client") for base in type(thing).__mro__):
        raise PlacementError(
            "this handle belongs to a Ray Client connection (an address that starts with ray://), "
            "and compiled graphs do not work through one: the driver must run on a node of the "
            "cluster. Connect with rcg.init(address='auto') there, or submit the program as a job."
        )


# --- actors -----------------------------------------------------------------------------------


def remote(*args: Any, **options: Any) -> Any:
    """Call ``ray.remote``."""
    return ray.remote(*args, **options)


def declared_options(target: Any) -> dict[str, Any]:
    """Return the options with which a class or function was given to ``remote``."""
    return dict(getattr(target, "_default_options", None) or {})


def plain_class(actor_class: Any) -> type:
    """Return the class that was given to ``remote``."""
    metadata = getattr(actor_class, "__ray_metadata__", None)
    return getattr(metadata, "modified_class", None) or type(actor_class)


def method(*args: Any, **options: Any) -> Any:
    """Call ``ray.method``."""
    return ray.method(*args, **options)


def get_actor(name: str, namespace: str | None = None) -> Any:
    """Return the handle of a named actor; raises ValueError if there is none."""
    return ray.get_actor(name, namespace=namespace)


def kill(handle: Any, *, no_restart: bool = True) -> None:
    """Kill an actor at once, without its ``atexit`` handlers."""
    ray.kill(handle, no_restart=no_restart)


def actor_id(handle: Any) -> str:
    """Return the actor's id in hex, which tells actors apart in the whole cluster."""
    found = getattr(handle, "_actor_id", None)
    if found is not None:
        return str(found.hex())
    parsed = _HANDLE_TEXT.fullmatch(repr(handle))
    return parsed["id"] if parsed else ""


def actor_key(handle: Any) -> str:
    """Return what tells this actor from others, also if its handle has no id."""
    return actor_id(handle) or f"handle {id(handle)}"


def actor_label(handle: Any) -> str:
    """Return the name of the actor's class, for people; a local class without its function."""
    parsed = _HANDLE_TEXT.fullmatch(repr(handle))
    return parsed["label"].rpartition(".")[2] if parsed else type(handle).__name__


def actor_method_signature(handle: Any, name: str) -> inspect.Signature | None:
    """Return the signature of a method without ``self``; None where Ray does not know it.

    It is unknown for actors in other languages, for generators in some releases (their signature
    is empty), and on a Ray whose handles do not carry signatures.
    """
    signatures = getattr(handle, "_ray_method_signatures", None)
    parameters = None if signatures is None else signatures.get(name)
    if parameters is None:
        return None
    kept = [each for each in parameters if each.name not in (_TRACE_PARAMETER, HIDDEN_KEYWORD)]
    return inspect.Signature(kept)


def actor_method_transport(handle: Any, name: str) -> str | None:
    """Return the tensor transport of a method of rcg's actors; None for other actors.

    ``gloo``, or ``gloo*2`` for a method with two values; "" for none, "-" for none ever.
    """
    return _hidden_default(handle, name, HIDDEN_KEYWORD)


def actor_class_secret(handle: Any) -> str:
    """Return the secret of the class of one of rcg's actors; "" for other actors.

    Ray ships it with the class, so only processes that have a handle know it.
    """
    return _hidden_default(handle, "__init__", SECRET_KEYWORD) or ""


def _hidden_default(handle: Any, name: str, keyword: str) -> str | None:
    signatures = getattr(handle, "_ray_method_signatures", None) or {}
    for parameter in reversed(signatures.get(name) or ()):
        if parameter.name == keyword:
            return str(parameter.default)
    return None


def actor_method_num_returns(handle: Any, name: str) -> int | str:
    """Return how many values a method returns: a number, or "streaming" for a generator.

    1, which is what Ray assumes of an undecorated method, where Ray does not say.
    """
    declared = getattr(handle, "_ray_method_num_returns", None)
    found = None if declared is None else declared.get(name)
    if found is None:
        found = getattr(getattr(handle, name, None), "_num_returns", None)
    return 1 if found is None else found


def submit(handle: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Have the actor run ``function(instance, *args, **kwargs)``; returns an ObjectRef at once.

    On a plain actor the call queues behind the method that is running. Give a function of an
    importable module: it is pickled by reference.
    """
    return handle.__ray_call__.remote(function, *args, **kwargs)


def ask(handle: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """As ``submit``, for functions that may run twice: waits for an actor that is restarting."""
    return handle.__ray_call__.options(max_task_retries=-1).remote(function, *args, **kwargs)


def probe(handle: Any) -> Any:
    """Return an ObjectRef that resolves once the actor is up, and fails with its death's cause."""
    return handle.__ray_ready__.remote()


# --- objects ----------------------------------------------------------------------------------


def when_failed(ref: Any, call: Callable[[BaseException], object]) -> None:
    """Call with the error of a task once it fails, on a thread of Ray's that must not wait."""

    def look(done: Any) -> None:
        if not done.cancelled() and done.exception() is not None:
            call(done.exception())

    ref.future().add_done_callback(look)


def get(refs: Any, *, timeout_s: float | None = None, **options: Any) -> Any:
    """Return the value of an ObjectRef, or of each in a list.

    Raises:
        ray.exceptions.GetTimeoutError: It took longer than ``timeout_s``.
    """
    return ray.get(refs, timeout=timeout_s, **options)


def get_timeout(text: str) -> Exception:
    """Return the error for a ``get`` that took too long."""
    error: Exception = ray.exceptions.GetTimeoutError(text)
    return error


def put(value: Any, **options: Any) -> Any:
    """Store a value in Ray's object store and return its ObjectRef."""
    return ray.put(value, **options)


def wait(
    refs: Any, *, num_returns: int = 1, timeout_s: float | None = None, fetch_local: bool = True
) -> tuple[list[Any], list[Any]]:
    """Wait until ``num_returns`` of a list of ObjectRefs are ready; returns (ready, others)."""
    ready, others = ray.wait(
        refs, num_returns=num_returns, timeout=timeout_s, fetch_local=fetch_local
    )
    return ready, others


def which_exist(keys: list[bytes]) -> list[bool]:
    """Return of each id of an ObjectRef whether its object exists.

    One that this process has put exists as long as anybody in the cluster holds a reference.
    """
    found = {ref.binary() for ref in ready_of([ray.ObjectRef(key) for key in keys])}
    return [key in found for key in keys]


def value_of(key: bytes) -> Any:
    """Return the value of the ObjectRef with this id, if it is there; raises what it failed with.

    Raises:
        TimeoutError: It is not there yet.
    """
    return _without_starting(ray.get)(ray.ObjectRef(key), timeout=0)


def ready_of(refs: list[Any], timeout_s: float | None = 0) -> list[Any]:
    """Return those ObjectRefs whose values are there or failed; waits so long for all of them."""
    if not refs:
        return []
    wait = _without_starting(ray.wait)
    ready, _ = wait(refs, num_returns=len(refs), timeout=timeout_s, fetch_local=False)
    return list(ready)


def _without_starting(function: Any) -> Any:
    """Return a function of Ray's that starts no session: the user may leave Ray at any moment."""
    return inspect.unwrap(function)


def dumps(value: Any) -> bytes:
    """Pickle with Ray's cloudpickle: definitions of ``__main__``, lambdas, handles, ObjectRefs."""
    return bytes(cloudpickle.dumps(value))


def loads(data: bytes | memoryview) -> Any:
    """Load what ``dumps`` made."""
    return cloudpickle.loads(data)


def by_value_pickler() -> type[Any]:
    """Return the pickler class that writes definitions of ``__main__`` by value.

    It is Ray's cloudpickle: it also keeps the ObjectRefs and handles that it meets alive.
    """
    found: type[Any] = cloudpickle.CloudPickler
    return found


def opaque_types() -> tuple[type, ...]:
    """Return the exact types that only Ray's own pickler may write."""
    return (ray.ObjectRef, ray.ObjectRefGenerator, ray.actor.ActorHandle)


def modules_pickled_by_value() -> tuple[str, ...]:
    """Return the modules that the user asked to be pickled by value."""
    return tuple(cloudpickle.list_registry_pickle_by_value())


# --- errors of users' methods -----------------------------------------------------------------


def task_error(
    function_name: str,
    traceback_text: str,
    cause: BaseException,
    *,
    pid: int | None = None,
    ip: str | None = None,
    actor_repr: str | None = None,
    actor_id: str | None = None,
) -> Any:
    """Build Ray's record of an exception in a user's method: the ``RayTaskError``, not raised.

    It prints the name, the traceback in the actor and the actor's ``repr``. A cause that does not
    pickle is replaced by its text. ``pid`` and ``ip`` are this process's and node's if None.
    """
    return ray.exceptions.RayTaskError(
        function_name,
        traceback_text,
        cause,
        proctitle=f"ray::{function_name}",  # as Ray prints it; without it, this process's title
        pid=pid,
        ip=ip,
        actor_repr=actor_repr,
        actor_id=actor_id,
    )


def as_user_error(error: Any) -> Exception:
    """Turn a ``RayTaskError`` into the exception to raise: it also is of the user's own type."""
    raised: Exception = error.as_instanceof_cause()
    return raised


def is_actor_death(error: BaseException) -> bool:
    """Return whether the error says that the process of an actor is gone, for now or for good."""
    return isinstance(error, ray.exceptions.RayActorError)


def is_actor_unavailable(error: BaseException) -> bool:
    """Return whether the error says that an actor may answer later: it is being started again."""
    return isinstance(error, ray.exceptions.ActorUnavailableError)


def death_of(handle: Any, timeout_s: float) -> str | None:
    """Return why an actor is dead, as Ray says; "" if Ray does not say it in time, None if not."""
    asked = probe(handle)
    ready, _ = wait([asked], timeout_s=timeout_s)
    if not ready:
        return ""
    try:
        get(asked)
    except ray.exceptions.RayActorError as error:
        return "" if is_actor_unavailable(error) else str(error)
    return None


def why_dead(said: str) -> str:
    r"""Return why an actor is dead as a clause, of the paragraphs that Ray says of it.

    >>> why_dead("The actor died.\n\tpid: 7\nThe actor is dead because it was killed. Note that")
    'it was killed'
    >>> why_dead("an error raised in its creation task, ...\nValueError: no such model")
    'its __init__ raised ValueError: no such model'
    >>> said = "its worker process has died. Worker exit type: X Worker exit detail: It leaked. So"
    >>> why_dead(f"The actor is dead because {said}")
    'its worker process has died (It leaked)'
    """
    lines = _STYLES.sub("", said).strip().splitlines() or ["Ray does not say why"]
    _, is_told, why = "\n".join(lines).rpartition("The actor is dead because ")
    if not is_told and _IN_INIT in lines[0]:
        return f"its __init__ raised {lines[-1].strip()}"
    _, _, detail = why.partition("Worker exit detail: ")
    reason = _first_sentence(why if is_told else lines[0])
    return f"{reason} ({_first_sentence(detail)})" if is_told and detail else reason


def _first_sentence(text: str) -> str:
    return re.split(r"\.(?:\s|$)", text)[0]


def is_dead_in_init(said: str) -> bool:
    """Return whether Ray says of the death of an actor that its ``__init__`` raised."""
    return _IN_INIT in said.partition("\n")[0]


def rays_collective(kind: str, group: str) -> Callable[..., Any] | None:
    """Return the function of ``ray.util.collective``, if it has a group of this name here."""
    module = sys.modules.get("ray.util.collective.collective")
    is_known = module is not None and module.is_group_initialized(group)
    return getattr(module, kind, None) if is_known else None


def rays_reduce_op(name: str) -> Any:
    """Return the operation of ``ray.util.collective`` of a name."""
    return sys.modules["ray.util.collective.types"].ReduceOp[name]


def cause_of(error: BaseException) -> BaseException | None:
    """Return the exception that a remote call raised in its own process; None for other errors."""
    return error.cause if isinstance(error, ray.exceptions.RayTaskError) else None
