# SPDX-License-Identifier: Apache-2.0
"""One rank of a vLLM engine in an actor: the methods that the graph binds, and those of the set-up.

vLLM's wrapper holds its worker and answers its calls. A step of the engine is two methods here:
``forward`` runs the layers of a stage, ``sample`` ends the step. The hidden states travel from
stage to stage on the edges of the graph, so vLLM's worker itself sends nothing between stages.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

import torch
from vllm import envs
from vllm.distributed.parallel_state import get_pp_group
from vllm.platforms import current_platform
from vllm.sequence import IntermediateTensors
from vllm.utils.network_utils import get_distributed_init_method, get_open_port
from vllm.v1.outputs import AsyncModelRunnerOutput
from vllm.v1.serial_utils import run_method
from vllm.v1.worker.worker_base import WorkerWrapperBase

from rcg import cluster

try:
    from vllm.distributed.device_communicators.ray_communicator import RayPPCommunicator
except ImportError:  # since vLLM 0.33

    class RayPPCommunicator:  # type: ignore[no-redef]
        """vLLM's group between stages, with the methods of Ray's ``Communicator``.

        Args:
            world_size: How many stages there are.
            comm_id: Not used.
            rank: The stage of this process; None in the engine, which is none.
            actor_handles: The actors, by stage.
            cuda_stream: Not used.
        """

        def __init__(
            self, world_size: int, comm_id: Any, rank: Any, actor_handles: Any, cuda_stream: Any
        ) -> None:
            self._world_size = world_size
            self._rank: int | None = rank
            self._actor_handles = actor_handles
            self._comm: Any = None if rank is None else get_pp_group().device_communicator

        def get_actor_handles(self) -> list[Any]:
            """Return the actors, by stage."""
            return list(self._actor_handles)

        def get_self_rank(self) -> int | None:
            """Return the stage of this process."""
            return self._rank

        def get_world_size(self) -> int:
            """Return how many stages there are."""
            return self._world_size

        def send(self, tensor: torch.Tensor, peer: int) -> None:
            """Send a tensor to a stage."""
            self._comm.send(tensor, peer)

        def recv(self, shape: Any, dtype: torch.dtype, peer: int, allocator: Any) -> torch.Tensor:
            """Return the next tensor of a stage."""
            found = self._comm.recv(torch.Size(shape), dtype, peer)
            if found.is_cuda:
                torch.cuda.current_stream().synchronize()
            return found

        def allgather(self, *_: Any) -> None:
            """Raise NotImplementedError: stages only send and receive."""
            raise NotImplementedError("stages of vLLM only send and receive")

        allreduce = reducescatter = allgather

        def destroy(self) -> None:
            """Do nothing: the group is vLLM's."""

        @classmethod
        def generate_communicator_id(cls) -> str:
            """Return a name; the group has one already."""
            return "vllm"


class StageWorker(WorkerWrapperBase):
    """The worker of one rank.

    Args:
        rank: The rank in the engine.
    """

    def __init__(self, rank: int) -> None:
        super().__init__(rpc_rank=0, global_rank=rank)
        self._output: Any = None
        self._thread: int | None = None

    def __getattr__(self, name: str) -> Any:
        # The base class looks for any name in `worker`, even before there is one.
        if name == "worker" or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return super().__getattr__(name)

    # --- the set-up

    def place(self) -> tuple[str, list[int]]:
        """Return the id of this node, and the devices that Ray gave to this actor."""
        to_physical = current_platform.device_control_id_to_physical_device_id
        return cluster.node_id(), list(
            map(to_physical, cluster.gpu_ids(current_platform.ray_device_key))
        )

    def rendezvous(self, is_one_node: bool) -> str:
        """Return where the ranks of ``torch.distributed`` meet: on the node of this rank."""
        host = "127.0.0.1" if is_one_node else cluster.node_ip()
        return str(get_distributed_init_method(host, get_open_port()))

    def start(self, environ: Mapping[str, str], arguments: dict[str, Any]) -> None:
        """Make vLLM's worker and load the model; returns when all ranks have done so.

        Args:
            environ: The variables of the engine's process, for those that are not set here.
            arguments: What the worker is made with.
        """
        for name, value in environ.items():
            os.environ.setdefault(name, value)
        self.init_worker([arguments])
        self.init_device()
        if envs.VLLM_ELASTIC_EP_SCALE_UP_LAUNCH:
            self.worker.elastic_ep_execute("load_model")
        else:
            self.worker.load_model()
        current_platform.update_block_size_for_backend(self.vllm_config)

    def execute_method(self, method: str | bytes, *args: Any, **kwargs: Any) -> Any:
        """Run a method of the worker, or a pickled function on it: a call of ``collective_rpc``."""
        return run_method(self, method, args, kwargs)

    # --- a step

    def forward(self, step: tuple[Any, Any], hidden: Any = None) -> Any:
        """Run the layers of this stage.

        Args:
            step: What the scheduler chose, and its grammar's bitmask.
            hidden: What the stage before has returned.

        Returns:
            What the next stage needs; None if there is nothing for it.
        """
        scheduled, _ = step
        self._use_device()
        self._apply_mm_cache(scheduled)
        with torch.inference_mode(), self.worker.annotate_profile(scheduled):
            output = self.worker.model_runner.execute_model(scheduled, hidden)
        if isinstance(output, IntermediateTensors):
            return output
        self._output = output
        return None

    def sample(self, step: tuple[Any, Any], hidden: Any, is_wanted: bool) -> Any:
        """End the step that ``forward`` began, and return its output.

        Args:
            step: What ``forward`` was given.
            hidden: What it returned: not used, but it orders the two.
            is_wanted: Whether the engine reads the output of this rank.
        """
        output, self._output = self._output, None
        runner = self.worker.model_runner
        if output is None:
            with torch.inference_mode():
                # Only the newer of vLLM's two runners pools in a step of its own.
                is_pooling = self.worker.use_v2_model_runner and runner.is_pooling_model
                output = runner.pool() if is_pooling else runner.sample_tokens(step[1])
        if not is_wanted:
            return None
        if isinstance(output, AsyncModelRunnerOutput):
            output = output.get_output()  # it holds events of a device, and does not travel
        return output

    def _use_device(self) -> None:
        """Have the thread of the graph use the device, which torch keeps by thread."""
        if self._thread != threading.get_ident():
            if not current_platform.is_tpu():
                current_platform.set_device(self.worker.device)
            self._thread = threading.get_ident()


class StageCommunicator(RayPPCommunicator):
    """vLLM's communicator between the stages of one tensor-parallel rank.

    vLLM's is made where its rank is known. This one is made in the engine, pickled, and becomes
    vLLM's when rcg initializes it in an actor.

    Args:
        handles: The actors, by stage.
    """

    def __init__(self, handles: list[Any]) -> None:
        super().__init__(len(handles), None, None, handles, None)

    def initialize(self, rank: int) -> None:
        """Take the group of vLLM's worker in this process."""
        RayPPCommunicator.__init__(self, self._world_size, None, rank, self._actor_handles, None)

    def _build_actor_rank_mapping(self) -> None:
        """Do nothing: vLLM's ranks would tell each other what the handles already say."""

    def get_rank(self, actor: Any) -> int:
        """Return the stage of an actor; raises ValueError if it has none here."""
        keys = [cluster.actor_key(each) for each in self._actor_handles]
        return keys.index(cluster.actor_key(actor))

    def get_transport_name(self) -> str:
        """Return which kind of group vLLM has between stages."""
        return "gloo" if current_platform.is_cpu() else "nccl"
