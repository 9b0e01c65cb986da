# SPDX-License-Identifier: Apache-2.0
"""``RcgExecutor``: an executor of vLLM whose workers are the actors of one compiled graph.

With two stages of two tensor-parallel ranks::

    step -> r0.forward -> r2.forward -> r2.sample -> output
         -> r1.forward -> r3.forward -> r3.sample

Each rank gets the step from the engine, not from the stage before. Calls that are no steps
(``collective_rpc``) are ordinary calls of the actors. They begin when the steps before them are
done, and the steps after them begin when they are done, as with vLLM's own executors.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import fields
from typing import Any, Final

from vllm import __version__ as vllm_version
from vllm import envs
from vllm.platforms import current_platform
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import ReconfigureRankType
from vllm.v1.executor.abstract import Executor
from vllm.v1.executor.ray_env_utils import (
    get_driver_env_vars,
    update_runtime_env_for_worker_import,
)
from vllm.v1.executor.ray_utils import (
    WORKER_SPECIFIC_ENV_VARS,
    build_actor_name,
    get_bundles_for_indices,
    get_bundles_sorted_by_node,
    initialize_ray_cluster,
)
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT

from rcg import cluster
from rcg.actors import ActorHandle, remote
from rcg.dag import InputNode, MultiOutputNode
from rcg.integrations.vllm.worker import StageCommunicator, StageWorker
from rcg.log import Log
from rcg.options import is_vllm_overlapping, vllm_channel
from rcg.refs import get, wait

TRIED: Final = ("0.32.0",)
"""The versions of vLLM that the tests have run with."""

_NSIGHT: Final = {"t": "cuda,cudnn,cublas", "o": "'worker_process_%p'", "cuda-graph-trace": "node"}

_log = Log()


class StepFuture(Future[Any]):
    """The result of a step, or of a call of all workers. One thread uses it: the engine's.

    Args:
        refs: What it waits for.
        make: Makes the result of their values.
        timeout_s: How long ``result`` waits if its caller sets no limit.
    """

    def __init__(
        self, refs: Sequence[Any], make: Callable[[list[Any]], Any], timeout_s: float | None
    ) -> None:
        super().__init__()
        self._refs: list[Any] = list(refs)
        self._make = make
        self._timeout_s = timeout_s

    def done(self) -> bool:
        """Return whether ``result`` would return, or raise, without waiting."""
        if super().done():
            return True
        ready, _ = wait(self._refs, num_returns=len(self._refs), timeout=0)
        return len(ready) == len(self._refs)

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the result and return it.

        Raises:
            ActorDiedError: A worker died.
            ChannelTimeout: The result did not come in time; it can be got later. The text says
                what each worker does.
            Exception: What a worker raised.
        """
        if not super().done():
            try:
                values = get(self._refs, timeout=self._timeout_s if timeout is None else timeout)
                self.set_result(self._make(values))
            except TimeoutError:
                raise
            except Exception as error:  # noqa: BLE001 - a future holds whatever it was
                self.set_exception(error)
            self._refs.clear()
        return super().result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait like ``result``, and return what that raises."""
        with contextlib.suppress(Exception):
            self.result(timeout)
        return super().exception(0)


class RcgExecutor(Executor):
    """Runs the workers of an engine as one compiled graph; see the module.

    It needs what vLLM's own executors on Ray need: a platform that Ray knows the devices of.
    """

    uses_ray = True
    supports_pp = True

    # --- the set-up

    def _init_executor(self) -> None:
        _warn_of_version()
        self.has_connector = self.vllm_config.kv_transfer_config is not None or (
            self.vllm_config.ec_transfer_config is not None
        )
        encoders = self.vllm_config.ec_transfer_config
        self.uses_sampler = self.vllm_config.model_config.runner_type != "pooling" and (
            encoders is None or encoders.is_ec_consumer
        )
        self._deferred: Any = None  # a step that waits for `sample_tokens`
        self._last: list[Any] = []  # the refs of the newest step
        self._calls: list[Any] = []  # calls that no one has waited for
        self._is_shut_down = False
        # Asking Ray for the current group would connect to a cluster, which vLLM does its own way.
        is_in_group = (
            cluster.is_connected() and _groups("get_current_placement_group")() is not None
        )
        self._has_own_group = self.parallel_config.placement_group is None and not is_in_group
        # Since 0.33 it asks for no GPU on this node.
        asks = "require_gpu_on_driver" in inspect.signature(initialize_ray_cluster).parameters
        options = {"require_gpu_on_driver": False} if asks else {}
        initialize_ray_cluster(self.parallel_config, **options)
        try:
            self._start()
        except BaseException:
            self._remove_group()
            raise

    def _start(self) -> None:
        """Start the workers and compile the graph."""
        self.workers = self._start_workers()
        per_stage = self.parallel_config.world_size // self.parallel_config.pipeline_parallel_size
        self.stages = [
            self.workers[first : first + per_stage]
            for first in range(0, len(self.workers), per_stage)
        ]
        self._output_rank = len(self.workers) - per_stage
        self.graph = self._compile()

    def _start_workers(self) -> list[ActorHandle]:
        """Create an actor for each rank, and load the model in them."""
        config = self.parallel_config
        group, size = config.placement_group, config.world_size
        if envs.VLLM_RAY_BUNDLE_INDICES:
            indices = list(map(int, envs.VLLM_RAY_BUNDLE_INDICES.split(",")))
            bundles = get_bundles_for_indices(group, indices, size)
        else:
            bundles = get_bundles_sorted_by_node(group)[:size]
        runtime_env = self._runtime_env()
        strategy = cluster.attribute(
            "PlacementGroupSchedulingStrategy", of="ray.util.scheduling_strategies"
        )
        workers = [
            remote(StageWorker)
            .options(
                name=build_actor_name(
                    self.vllm_config.instance_id,
                    rank,
                    config.tensor_parallel_size,
                    config.pipeline_parallel_size,
                    config.prefill_context_parallel_size,
                ),
                num_cpus=0,
                scheduling_strategy=strategy(
                    placement_group=group,
                    placement_group_bundle_index=bundle,
                    placement_group_capture_child_tasks=True,
                ),
                runtime_env=runtime_env,
                **_devices(envs.VLLM_RAY_PER_WORKER_GPUS),
            )
            .remote(rank)
            for rank, (bundle, _, _) in enumerate(bundles)
        ]
        places = get([worker.place.remote() for worker in workers])
        devices: dict[str, list[int]] = defaultdict(list)
        ranks: dict[str, list[int]] = defaultdict(list)
        for rank, (node, ids) in enumerate(places):
            devices[node] = sorted([*devices[node], *ids])
            ranks[node].append(rank)
        meeting = get(workers[0].rendezvous.remote(len(ranks) == 1))
        environ = get_driver_env_vars(worker_specific_vars=WORKER_SPECIFIC_ENV_VARS)
        get(
            [
                worker.start.remote(
                    environ,
                    {
                        "vllm_config": self.vllm_config,
                        "local_rank": ranks[node].index(rank),
                        "rank": rank,
                        "distributed_init_method": meeting,
                        "is_driver_worker": rank % config.tensor_parallel_size == 0,
                        "assigned_physical_gpu_ids": devices[node],
                    },
                )
                for rank, (worker, (node, _)) in enumerate(zip(workers, places, strict=True))
            ]
        )
        return workers

    def _runtime_env(self) -> dict[str, Any]:
        """Return what Ray starts the actors with."""
        found: dict[str, Any] = copy.deepcopy(dict(self.parallel_config.ray_runtime_env or {}))
        variables = found.setdefault("env_vars", {})
        variables.update(dict.fromkeys(current_platform.ray_noset_device_env_vars, "1"))
        update_runtime_env_for_worker_import(found)
        if self.parallel_config.ray_workers_use_nsight:
            found["nsight"] = dict(_NSIGHT)
        return found

    def _compile(self) -> Any:
        """Compile the graph of a step."""
        # Otherwise only the last stage has something to do once the layers have run.
        is_each_sampling = (
            self.has_connector
            or self.vllm_config.use_v2_model_runner
            or self.vllm_config.scheduler_config.async_scheduling
        )
        outputs: list[Any] = []
        with InputNode() as step:
            hidden: list[Any] = []
            for number, stage in enumerate(self.stages):
                is_last = number == len(self.stages) - 1
                before, hidden = hidden, []
                for place, worker in enumerate(stage):
                    made = worker.forward.bind(step, *before[place : place + 1])
                    if not is_last:
                        self._hint(made, place)
                    hidden.append(made)
                    if is_last or is_each_sampling:
                        is_wanted = self.has_connector or (is_last and place == 0)
                        outputs.append(worker.sample.bind(step, made, is_wanted))
            root = MultiOutputNode(outputs)
        return root.experimental_compile(
            name="vllm",
            _overlap_gpu_communication=_is_overlapping(),
        )

    def _hint(self, made: Any, place: int) -> None:
        """Say how the hidden states of one rank go to the next stage."""
        channel = _channel()
        if channel == "vllm":
            stages = [stage[place] for stage in self.stages]
            made.with_tensor_transport(transport=StageCommunicator(stages))
        elif channel != "shm":
            made.with_tensor_transport(transport=channel)

    # --- steps

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        """Run a step, or keep it for ``sample_tokens`` if it samples; see vLLM's ``Executor``."""
        if self._deferred is not None:
            raise RuntimeError("sample_tokens() must be called after execute_model() returns None")
        if self.uses_sampler and scheduler_output.total_num_scheduled_tokens:
            self._deferred = scheduler_output
            return _done(None) if non_block else None
        if not self.has_connector and is_empty(scheduler_output):
            # vLLM schedules such steps while all requests are in flight. In a worker, one would
            # only take the requests out of the batch, and the next step would add them again.
            return _done(EMPTY_MODEL_RUNNER_OUTPUT) if non_block else EMPTY_MODEL_RUNNER_OUTPUT
        return self._execute(scheduler_output, None, non_block)

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        """Run the step that ``execute_model`` was given; see vLLM's ``Executor``."""
        scheduled, self._deferred = self._deferred, None
        if scheduled is None:
            return _done(None) if non_block else None
        return self._execute(scheduled, grammar_output, non_block)

    def _execute(self, scheduled: Any, grammar: Any, non_block: bool) -> Any:
        self._finish(self._calls)
        self._last = self.graph.execute((scheduled, grammar))
        refs = self._last if self.has_connector else [self._last[-len(self.stages[-1])]]
        future = StepFuture(refs, self._aggregate, envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS)
        return future if non_block else future.result()

    def _aggregate(self, outputs: list[Any]) -> Any:
        """Return the output of a step, of those of the ranks that the engine reads."""
        rank = self._output_rank if self.has_connector else 0
        for aggregator in (self.kv_output_aggregator, self.ec_output_aggregator):
            if aggregator is not None:
                aggregator.aggregate(outputs, output_rank=rank)
        return outputs[rank]

    # --- other calls

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        non_block: bool = False,
    ) -> Any:
        """Call a method of each worker; see vLLM's ``Executor``."""
        return self._call(self.workers, method, timeout, args, kwargs, non_block)

    def take_draft_token_ids(self) -> Any:
        """Return the draft tokens, which the last stage has."""
        return self._call(self.stages[-1][:1], "take_draft_token_ids")[0]

    def _call(
        self,
        workers: Sequence[ActorHandle],
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        non_block: bool = False,
    ) -> Any:
        self._finish(self._last, timeout)
        sent = method if isinstance(method, str) else cluster.dumps(method)
        refs = [each.execute_method.remote(sent, *args, **(kwargs or {})) for each in workers]
        if not non_block:
            return get(refs, timeout=timeout)
        self._calls.extend(refs)
        return StepFuture(refs, list, timeout)

    def _finish(self, refs: list[Any], timeout_s: float | None = None) -> None:
        """Wait until what was begun has ended, in whatever way."""
        if refs:
            wait(list(refs), num_returns=len(refs), timeout=timeout_s)
            refs.clear()

    def reinitialize_distributed(self, reconfig_request: Any) -> None:
        """Change the group of data-parallel engines; see vLLM's ``Executor``."""
        self.collective_rpc("reinitialize_distributed", args=(reconfig_request,))
        if reconfig_request.new_data_parallel_rank == ReconfigureRankType.SHUTDOWN_CURRENT_RANK:
            self.shutdown()

    # --- health and the end

    def check_health(self) -> None:
        """Raise if the graph has ended.

        Raises:
            ActorDiedError: A worker died.
            ChannelClosed: The executor was shut down.
        """
        self.graph.check_health()

    def register_failure_callback(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called when a worker has died, also while no step runs."""
        self.graph.on_broken(callback)

    def shutdown(self) -> None:
        """Tear the graph down and end the workers. Idempotent."""
        if self._is_shut_down:
            return
        self._is_shut_down = True
        try:
            self.graph.teardown(kill_actors=True)
        finally:
            self._remove_group()

    def _remove_group(self) -> None:
        """Give the devices back, if no one else asked for them."""
        if self._has_own_group:
            _groups("remove_placement_group")(self.parallel_config.placement_group)
            self.parallel_config.placement_group = None

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        """Return True: a step may begin before the engine has the output of the one before."""
        return True


def is_empty(scheduled: Any) -> bool:
    """Return whether a step has nothing to say to the workers, not even which requests ended."""
    if scheduled.total_num_scheduled_tokens:
        return False
    empty = SchedulerOutput.make_empty()
    found = [(getattr(scheduled, each.name), getattr(empty, each.name)) for each in fields(empty)]
    return all(value == other or not (value or other) for value, other in found)


def _done(result: Any) -> Future[Any]:
    """Return a future that has its result."""
    made: Future[Any] = Future()
    made.set_result(result)
    return made


def _groups(name: str) -> Any:
    """Return a function of Ray's for placement groups."""
    return cluster.attribute(name, of="ray.util")


def _devices(count: float) -> dict[str, Any]:
    """Return Ray's options of an actor that uses devices of this platform."""
    key = current_platform.ray_device_key
    return {"num_gpus": count} if key == "GPU" else {"num_gpus": 0, "resources": {key: count}}


def _channel() -> str:
    """Return how hidden states travel: by rcg's variable, or those that vLLM had until 0.33."""
    usual = "vllm" if current_platform.is_cuda_alike() else "shm"
    channel = vllm_channel()
    if channel:
        return usual if channel == "auto" else channel
    channel = getattr(envs, "VLLM_USE_RAY_COMPILED_DAG_CHANNEL_TYPE", "auto")
    if channel == "shm" or (channel == "auto" and usual == "shm"):
        return "shm"
    return "vllm" if getattr(envs, "VLLM_USE_RAY_WRAPPED_PP_COMM", True) else str(channel)


def _is_overlapping() -> bool:
    """Return whether they travel beside methods."""
    found = is_vllm_overlapping()
    if found is None:
        return bool(getattr(envs, "VLLM_USE_RAY_COMPILED_DAG_OVERLAP_COMM", False))
    return found


def _warn_of_version() -> None:
    """Warn if this vLLM is none of those that were tried."""
    if vllm_version.partition("+")[0] not in TRIED:
        _log.warning(
            "rcg: RcgExecutor was tried with vLLM %s, and this is %s: compare its output with that "
            "of another executor before you rely on it",
            ", ".join(TRIED),
            vllm_version,
        )
