# pyright: basic
"""A configuration enters; Lamella's model leaves, its step ready to be launched again and again on made-up inputs."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import triton

from lamella import api
from lamella.errors import PromptError
from lamella.pipeline import PassOptions
from lamella.program import Shape, compile_model
from lamella.runtime.executor import Executor, MemoryExecutor, make_executor
from lamella.runtime.manifest import Bucket
from lamella.runtime.weights import load_weights
from lamella.tools.step_inputs import fill_caches, step_inputs
from lamella.tools.step_timer import recipe


@dataclass(frozen=True)
class Step:
    """One bucket with inputs to which `reset` returns."""

    executor: Executor
    bucket: Bucket
    saved: Mapping[str, torch.Tensor]
    """On the executor's device."""
    steps: int = 1
    """Decode steps that a call runs: one graph of them on a GPU."""

    def reset(self) -> None:
        """Write the inputs again: a step that advances changes its own."""
        for name, tensor in self.executor.inputs(self.bucket).items():
            tensor.copy_(self.saved[name])

    def __call__(self) -> None:
        self.executor.launch(self.bucket, self.steps)


@contextmanager
def cold_compilation() -> Generator[None]:
    """Triton begins with an empty cache on disk."""
    with TemporaryDirectory(prefix="lamella-cold-") as folder, triton.knobs.cache.scope():
        triton.knobs.cache.dir = folder
        yield


def load(
    config: Path,
    shapes: Sequence[Shape],
    *,
    device: torch.device,
    dtype: str,
    max_context: int,
    sequences: int = 1,
    seed: int = 0,
    quantize: str = "none",
    kv_cache: str = "auto",
    steps_per_replay: int = 1,
    graphs: bool = True,
    pass_options: PassOptions | None = None,
) -> api.Model:
    """The model with random weights and a cache for `sequences` of `max_context` tokens; graphs of `steps_per_replay` decode steps, or with
    `graphs` off one launch after the other. `quantize` is a kind of weights, or one and the kind of what they are multiplied by: `int8+int8`."""
    weights, _, activations = quantize.partition("+")
    # Whole blocks a sequence: decode_inputs gives each its own.
    cache_tokens = sequences * -(-max_context // 16) * 16
    return api.load(
        config,
        random_weights=seed,
        device=device.type,
        dtype=dtype,
        buckets=shapes,
        max_context=max_context,
        cache_tokens=cache_tokens,
        quantize=weights,
        activations=activations or "none",
        kv_cache=kv_cache,
        steps_per_replay=steps_per_replay,
        graphs=graphs,
        pass_options=pass_options,
    )


def on_same_weights(model: api.Model, shapes: Sequence[Shape], *, max_context: int, sequences: int = 1) -> api.Model:
    """The same model compiled for other shapes, with a cache of its own, on the weights that are loaded, unless it wants other ones."""
    before, executor = model.program.manifest, model.executor
    assert before is not None and isinstance(executor, MemoryExecutor)
    on_gpu = executor.device.type == "cuda"
    program = compile_model(model.opened.config, shapes, dtype=before.dtype, max_context=max_context, kernels=on_gpu)
    manifest = program.manifest
    assert manifest is not None
    same = recipe(manifest) == recipe(before)
    weights = executor.memory.weights if same else load_weights(manifest, model.opened.source, executor.device)
    made = make_executor(
        manifest,
        weights,
        executor="cuda" if on_gpu else "reference",
        device=str(executor.device),
        kernels=program.kernels,
        cache_tokens=sequences * -(-max_context // 16) * 16,
    )
    made.prepare()
    return api.Model(model.opened, program, made, {})


def decode_step(model: api.Model, context: int, launches: int, seed: int = 0, *, steps: int = 1, bucket: Bucket | None = None) -> Step:
    """One token of each sequence, `context` tokens long after the step, its blocks scattered over a cache of random numbers.

    A call of it runs `steps` of them. `bucket` None is the model's first. Raises PromptError when `launches` more steps do not fit.
    """
    manifest, executor = model.program.manifest, model.executor
    assert manifest is not None
    if context < 1 or context + launches > manifest.max_context:
        raise PromptError("context and steps do not fit", expected=f"at most {manifest.max_context}", got=f"{context} + {launches}")
    bucket = bucket or manifest.buckets[0]
    fill_caches(executor.caches, seed)
    return _step(executor, bucket, context, seed, steps)


def prefill_step(model: api.Model, bucket: Bucket, seed: int = 0) -> Step:
    """All tokens of one fresh sequence."""
    return _step(model.executor, bucket, bucket.tokens, seed)


def _step(executor: Executor, bucket: Bucket, context: int, seed: int, steps: int = 1) -> Step:
    values = step_inputs(executor.manifest, bucket, context, seed)
    saved = {name: values[name].to(t.device, t.dtype) for name, t in executor.inputs(bucket).items()}
    step = Step(executor, bucket, saved, steps)
    step.reset()
    return step
