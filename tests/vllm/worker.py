# SPDX-License-Identifier: Apache-2.0
"""A worker on CPUs that can be a later stage, and can begin steps before it has sent their tokens.

vLLM runs neither on CPUs by itself.
"""

import contextlib
from types import SimpleNamespace

import torch
from vllm.distributed import get_pp_group
from vllm.v1.worker.cpu_worker import CPUWorker


class StageOnCpus(CPUWorker):
    def load_model(self, **options) -> None:
        super().load_model(**options)
        runner = self.model_runner
        if not get_pp_group().is_first_rank and runner.intermediate_tensors is None:
            # Elsewhere the warm-up makes them, which eager mode on CPUs leaves out.
            runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens, dtype=self.model_config.dtype, device=self.device
            )
        if runner.use_async_scheduling:
            # Copies of tokens to the CPU wait for nothing there.
            nothing = SimpleNamespace(
                record=lambda: None, synchronize=lambda: None, wait_stream=lambda other: None
            )
            runner.async_output_copy_stream = nothing
            torch.cuda.Event = lambda **options: nothing
            torch.cuda.current_stream = lambda: nothing
            torch.cuda.stream = contextlib.nullcontext
