# SPDX-License-Identifier: Apache-2.0
"""A worker on CPUs that can be a later stage, on its own memory for what the one before sends."""

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
