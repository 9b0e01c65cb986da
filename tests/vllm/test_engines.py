# SPDX-License-Identifier: Apache-2.0
"""Engines of vLLM on rcg generate what one process does, and say so when a worker dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray

import rcg
from rcg.errors import ActorDiedError, ChannelClosed
from rcg.integrations.vllm import RcgExecutor, executor, register
from tests.harness.peers import until
from tests.vllm.model import PROMPTS, generate
from tests.vllm.platform import STEPS_AHEAD

pytestmark = pytest.mark.usefixtures("ray_session")


def executor_of(llm: Any) -> Any:
    return llm.llm_engine.engine_core.engine_core.model_executor


def pid_of(worker: Any) -> int:
    return os.getpid()


@pytest.fixture(scope="module")
def stages(ray_session: None, engines: Callable[..., Any]) -> Iterator[Any]:
    """An engine of two stages. The last tests here end it."""
    with engines(pipeline_parallel_size=2, distributed_executor_backend=RcgExecutor) as llm:
        yield llm


def test_two_stages_generate_the_tokens_of_one_process(stages, expected) -> None:
    assert generate(stages) == expected


def test_each_stage_gets_the_step_from_the_engine(stages) -> None:
    step = next(each for each in executor_of(stages).graph.plan.channels if each.writer == "driver")
    assert step.readers == ("a0", "a1")


def test_a_report_and_a_profile_show_the_steps(stages) -> None:
    with rcg.profile() as profile:
        generate(stages, tokens=4)
    for text in ("a0 (StageWorker).forward", "a1 (StageWorker).sample"):
        assert text in str(profile)
    (report,) = rcg.report()
    assert report.name == "vllm"
    labels = [each.label for each in report.processes]
    assert labels == ["driver", "a0 (StageWorker)", "a1 (StageWorker)"]


def test_steps_that_say_nothing_are_not_run(stages, monkeypatch) -> None:
    """After each step of a pipeline vLLM schedules one, as all requests are in flight."""
    run = []
    execute = RcgExecutor._execute

    def noted(self, scheduled, *more):
        run.append((scheduled.total_num_scheduled_tokens, len(scheduled.finished_req_ids)))
        return execute(self, scheduled, *more)

    monkeypatch.setattr(RcgExecutor, "_execute", noted)
    generate(stages, tokens=8)
    generate(stages, tokens=8)
    assert not [each for each in run if each == (0, 0)]
    assert sum(ended for _, ended in run) >= len(PROMPTS), "workers forget requests that ended"


def test_calls_of_all_workers_go_beside_steps(stages) -> None:
    pids = stages.llm_engine.collective_rpc(pid_of)
    assert len(set(pids)) == 2 and os.getpid() not in pids
    future = executor_of(stages).collective_rpc("no_such", non_block=True)
    with pytest.raises(NotImplementedError, match="no_such"):
        future.result()
    assert future.done() and isinstance(future.exception(), NotImplementedError)
    executor_of(stages).check_health()


def test_a_killed_stage_ends_the_step_that_waits_for_it(stages) -> None:
    workers = executor_of(stages)
    pids = workers.collective_rpc(pid_of)
    failed = threading.Event()
    workers.register_failure_callback(failed.set)
    before = workers.graph.statistics().executions
    killer = threading.Thread(
        target=lambda: (
            until(lambda: workers.graph.statistics().executions > before + 8),
            os.kill(pids[1], signal.SIGKILL),
        )
    )
    killer.start()
    with pytest.raises(ActorDiedError, match="StageWorker"):
        generate(stages, tokens=200)
    killer.join()
    until(failed.is_set)
    with pytest.raises(ActorDiedError, match="StageWorker"):
        workers.check_health()


def test_a_shutdown_ends_the_workers_and_frees_their_devices(stages) -> None:
    workers = executor_of(stages)
    workers.shutdown()
    workers.shutdown()
    with pytest.raises(ChannelClosed):
        workers.check_health()
    until(lambda: ray.available_resources().get("GPU") == 4)


def test_steps_begin_before_the_results_of_earlier_ones_are_there(
    engines, expected, monkeypatch
) -> None:
    monkeypatch.setenv(STEPS_AHEAD, "1")
    options = {"tensor_parallel_size": 2, "async_scheduling": True}
    with engines(**options, distributed_executor_backend=RcgExecutor) as llm:
        assert llm.llm_engine.vllm_config.scheduler_config.async_scheduling
        assert generate(llm) == expected


def test_two_stages_of_two_ranks_over_vllms_communicators(engines, expected, monkeypatch) -> None:
    monkeypatch.setenv("VLLM_USE_RAY_COMPILED_DAG_CHANNEL_TYPE", "nccl")
    options = {"pipeline_parallel_size": 2, "tensor_parallel_size": 2}
    with engines(**options, distributed_executor_backend=RcgExecutor) as llm:
        groups = executor_of(llm).graph.plan.groups
        assert [group.members for group in groups] == [("a0", "a2"), ("a1", "a3")]
        assert generate(llm) == expected


def test_each_rank_of_each_stage_answers_for_a_kv_connector(engines, expected) -> None:
    from vllm.config import KVTransferConfig

    transfer = KVTransferConfig(
        kv_connector="SendsNothing",
        kv_connector_module_path="tests.vllm.connector",
        kv_role="kv_both",
    )
    options = {"pipeline_parallel_size": 2, "distributed_executor_backend": RcgExecutor}
    with engines(**options, kv_transfer_config=transfer) as llm:
        scheduler = llm.llm_engine.engine_core.engine_core.scheduler
        assert generate(llm) == expected
        first = set(scheduler.requests)
        assert len(first) == len(expected)
        assert generate(llm) == expected
        assert len(scheduler.requests) == len(expected)
        assert not first & set(scheduler.requests)


SERVED = """
import sys
from rcg.runtime.observe.drivers import find_drivers
from tests.vllm.model import engine, generate

if __name__ == "__main__":
    llm = engine(sys.argv[1], pipeline_parallel_size=2, distributed_executor_backend="ray")
    print("tokens", generate(llm))
    graphs = [(each.pid, graph.report.name) for each in find_drivers() for graph in each.graphs]
    print("graphs", [name for _, name in graphs], flush=True)
"""


def test_the_backend_ray_is_rcgs_where_the_variable_says_so(model, expected, tmp_path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SERVED)
    environ = {
        **os.environ,
        "RCG_VLLM": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",  # the engine is a process of its own
        "RAY_ADDRESS": ray.get_runtime_context().gcs_address,
    }
    found = subprocess.run(
        [sys.executable, program, model], env=environ, capture_output=True, text=True, check=False
    )
    assert f"tokens {expected}" in found.stdout, found.stderr[-4000:]
    assert "graphs ['vllm']" in found.stdout


def test_without_the_variable_ray_is_vllms(monkeypatch) -> None:
    from vllm.v1.executor.abstract import Executor

    monkeypatch.delenv("RCG_VLLM", raising=False)
    vllms = Executor.get_class
    register()
    assert Executor.get_class is vllms


def test_another_version_of_vllm_is_named(monkeypatch, caplog) -> None:
    monkeypatch.setattr(executor, "vllm_version", "0.99.1+cpu")
    executor._warn_of_version()
    assert "tried with vLLM 0.32.0, and this is 0.99.1+cpu" in caplog.text
    caplog.clear()
    monkeypatch.setattr(executor, "vllm_version", "0.32.0+cpu")
    executor._warn_of_version()
    assert not caplog.text
