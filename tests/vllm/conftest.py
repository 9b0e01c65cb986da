# SPDX-License-Identifier: Apache-2.0
"""One Ray and one model for all tests with vLLM, and its plugin that counts CPUs as devices."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
# Importlib finds the entry points of what is installed in a folder of the path, here and in actors.
PLUGINS = tempfile.TemporaryDirectory(prefix="rcg-vllm-")
_INSTALLED = Path(PLUGINS.name, "rcg_vllm_tests-0.dist-info")
_INSTALLED.mkdir()
(_INSTALLED / "METADATA").write_text("Metadata-Version: 2.1\nName: rcg-vllm-tests\nVersion: 0\n")
(_INSTALLED / "entry_points.txt").write_text(
    "[vllm.platform_plugins]\ncounted_cpus = tests.vllm.plugin:platform\n"
)
sys.path[:0] = [str(ROOT), PLUGINS.name]
os.environ |= {
    "PYTHONPATH": os.pathsep.join([str(ROOT), PLUGINS.name]),
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "180",
    # Ranks spin for each other in shared memory: on a busy machine, at a low priority, for minutes.
    "RAY_worker_niceness": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    import ray

    ray.init(num_cpus=4, num_gpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a small model."""
    from tests.vllm.model import save

    return save(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def engines(model: str) -> Callable[..., Any]:
    """Makes engines, with the arguments of ``LLM``; each ends with its ``with`` block."""
    from tests.vllm.model import engine

    @contextlib.contextmanager
    def running(**options: Any) -> Iterator[Any]:
        made = engine(model, **options)
        try:
            yield made
        finally:
            made.llm_engine.engine_core.shutdown()

    return running


@pytest.fixture(scope="session")
def expected(engines: Callable[..., Any]) -> list[list[int]]:
    """The greedy tokens of one process."""
    from tests.vllm.model import TOKENS, generate

    with engines() as llm:
        tokens = generate(llm)
    assert [len(each) for each in tokens] == [TOKENS] * len(tokens)
    assert all(len(set(each)) > 2 for each in tokens), "weights that make all tokens equal"
    return tokens
