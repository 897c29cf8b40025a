"""Learner updates without kernel launches: recorded once as a CUDA graph, and replayed.

The recording contains Stable-Baselines3's own `train`. A graph reads and writes the same memory at every replay and
cannot query the host. The batch and the learning rate are therefore in tensors that are overwritten, and numbers for
the log are read on demand. Replays run asynchronously, while the host samples the next batch.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

import torch
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from torch import Tensor
from torch.distributions import Distribution
from torch.optim import Adam, AdamW, Optimizer
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from quarl.algorithms.precision import Precision
from quarl.errors import first_line, note

WARM = 3
"""Updates of each phase before it is recorded: the first create shared tensors, the last is watched."""
ASKS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
BENEATH = (str(Path(torch.__file__).parent), __file__)
"""Files that do not count as the caller of an operator."""


class Later:
    """A number that is read on demand: the tensor's value at that time."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __truediv__(self, number: float) -> Later:  # numpy's mean divides
        return Later(self.tensor / number)

    def __float__(self) -> float:
        return float(self.tensor)


class ReadLater(TorchFunctionMode):
    """A mode in which `Tensor.item()` returns a Later, in this thread alone."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return Later(args[0].detach()) if func is Tensor.item else func(*args, **(kwargs or {}))


class Questions(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not annotate it
    """A mode that records the places at which Python waits for a tensor's values, on any device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.places: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # an index of whole numbers has their shape
        index = func is torch.ops.aten.index.Tensor and all(i is None or i.dtype != torch.bool for i in args[1])
        if ASKS & set(func.tags) and not index:
            frame = [frame for frame in traceback.extract_stack()[:-1] if not frame.filename.startswith(BENEATH)][-1]
            self.places.append(f"{Path(frame.filename).name}:{frame.lineno} ({func})")
        return func(*args, **(kwargs or {}))


def optimizers(model: OffPolicyAlgorithm) -> list[Optimizer]:
    """Return the optimizers that the model's `train` steps."""
    parts = [attrgetter(name)(model) for name in model._get_torch_save_params()[0]]
    return [part for part in parts if isinstance(part, Optimizer)]


@contextlib.contextmanager
def unasked(model: OffPolicyAlgorithm, batch: ReplayBufferSamples, rate: Tensor, asks: bool = False) -> Iterator[None]:
    """Run the block so that `model.train` learns from this batch at this rate, without waiting for numbers.

    Afterwards everything is as before: nothing of it is saved. Meanwhile, the distributions of other threads skip the
    validation of their arguments; nothing else changes for them.

    Args:
        model: Model to train.
        batch: Batch that its replay returns.
        rate: Learning rate as a tensor.
        asks: Allow D4PG to wait for numbers of its own.
    """
    patches = {"_update_learning_rate": lambda _: None, "after_update": lambda: None, "asks": asks}
    groups = [group for optimizer in optimizers(model) for group in optimizer.param_groups]
    before = [{name: group[name] for name in ("lr", "capturable")} for group in groups]
    validates = Distribution._validate_args
    try:
        vars(model).update(patches)
        vars(model.replay_buffer)["sample"] = lambda *_, **__: batch
        for group in groups:
            group.update(lr=rate, capturable=True)
        Distribution.set_default_validate_args(False)
        with ReadLater():
            yield
    finally:
        Distribution.set_default_validate_args(validates)
        for group, values in zip(groups, before, strict=True):
            group.update(values)
        del vars(model.replay_buffer)["sample"]
        for name in patches:
            del vars(model)[name]


class Graphs:
    """CUDA graphs, and the transfer of batches to their memory."""

    def __init__(self, device: torch.device) -> None:
        cuda: Any = torch.cuda  # torch does not annotate these
        self._stream, self._copied = cuda.Stream(device), cuda.Event()
        self._pinned: list[Tensor] = []

    def fill(self, static: Sequence[Tensor], batch: Sequence[Tensor]) -> None:
        """Copy a batch from main memory to the device, after the last copy is done: at most one update behind."""
        self._copied.synchronize()
        self._pinned += [tensor.pin_memory() for tensor in batch[len(self._pinned) :]]
        for place, page, tensor in zip(static, self._pinned, batch, strict=True):
            place.copy_(page.copy_(tensor), non_blocking=True)
        self._copied.record()

    def warm(self, body: Callable[[], None]) -> None:
        """Run `body` on a separate stream, as torch requires before recording."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            body()
        torch.cuda.current_stream().wait_stream(self._stream)

    def record(self, body: Callable[[], None]) -> Callable[[], None]:
        """Record `body` and return the function that replays it; nothing is computed yet."""
        graph: Any = torch.cuda.CUDAGraph()
        # torch leaves its stream current if recording fails
        with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            body()
        return lambda: graph.replay()


def graphs_for(model: OffPolicyAlgorithm, precision: Precision, *, qat: bool) -> Graphs | None:
    """Return graphs if the device is a GPU and they support the model's updates; otherwise report the reason.

    Args:
        model: Model to train.
        precision: Precision of the updates.
        qat: The updates use fake quantization.
    """
    why = [f"a step of {type(o).__name__}" for o in optimizers(model) if type(o) not in (Adam, AdamW)]
    why += ["fp16's loss scaling"] * (precision.dtype == "fp16") + ["--qat, whose ranges change"] * qat
    if model.device.type == "cuda" and why:
        note(f"learner updates launch kernel by kernel: a CUDA graph does not support {why[0]}")
    return None if why or model.device.type != "cuda" else Graphs(model.device)


@dataclass(slots=True)
class Phase:
    """A phase of updates that launch the same kernels: TD3's with a step of the actor, and those without."""

    num_warm: int = 0
    replay: Callable[[], None] | None = None
    numbers: dict[str, Later] = field(default_factory=dict)


class Updates:
    """A model's updates, one at a time: replayed if `graphs` are given and record them, else plain `train`."""

    def __init__(self, model: OffPolicyAlgorithm, precision: Precision, graphs: Graphs | None) -> None:
        """Prepare the updates of one model.

        Args:
            model: Model to train.
            precision: Precision of its updates.
            graphs: Recorder of CUDA graphs; None runs every update directly.
        """
        assert model.replay_buffer is not None
        self.model, self.precision, self.graphs, self.replay = model, precision, graphs, model.replay_buffer
        self._rate = torch.zeros((), device=model.device)
        self._static: Any = None
        self.forget()

    @property
    def settled(self) -> bool:
        """True if no phase is left to record."""
        return self.graphs is None or (bool(self._phases) and all(phase.replay for phase in self._phases.values()))

    def forget(self) -> None:
        """Discard the recordings, because a loaded checkpoint gives the optimizers other tensors."""
        self._phases: dict[bool, Phase] = {}
        self._numbers: dict[str, Later] = {}
        if self.graphs is None:
            return
        self.replay.device = torch.device("cpu")
        for optimizer in optimizers(self.model):
            for group in optimizer.param_groups:
                group["fused"] = True
            for parameter, state in optimizer.state.items():
                state["step"] = torch.as_tensor(state["step"], dtype=torch.float32, device=parameter.device)

    def update(self) -> None:
        """Make one gradient step on a batch of replay."""
        model = self.model
        # Without graphs, run `train` directly.
        if self.graphs is None:
            with self.precision.update():
                model.train(gradient_steps=1, batch_size=model.batch_size)
            self._numbers = {}
            return
        # Set the learning rate, and copy the batch to the device.
        number, stepped = model._n_updates + 1, optimizers(model)
        model._update_learning_rate(stepped)
        self._rate.fill_(stepped[0].param_groups[0]["lr"])
        batch: Any = self.replay.sample(model.batch_size, env=model._vec_normalize_env)
        if self._static is None:
            self._static = ReplayBufferSamples(*(torch.empty_like(tensor, device=model.device) for tensor in batch))
        self.graphs.fill(self._static, batch)
        # Record the phase if it is new, and replay it.
        phase = self._phases.setdefault(number % getattr(model, "policy_delay", 1) == 0, Phase())
        if phase.replay is None:
            self._prepare(phase)
        if phase.replay is not None:
            phase.replay()
        model._n_updates = number  # `train` counts when it is recorded, not when it is replayed
        self._numbers |= phase.numbers
        getattr(model, "after_update", lambda: None)()

    def _prepare(self, phase: Phase) -> None:
        """Make a warm-up update, or record the phase; its first replay is then the update."""
        assert self.graphs is not None
        phase.num_warm += 1
        if phase.num_warm <= WARM:
            watch = Questions()
            self.graphs.warm(lambda: self._train(phase, watch if phase.num_warm == WARM else None))
            if watch.places:
                self._launch(f"an update waits for the GPU at {watch.places[0]}")
            return
        number = self.model._n_updates
        try:
            phase.replay = self.graphs.record(lambda: self._train(phase))
        except RuntimeError as error:
            self._launch(first_line(error))
            self.model._n_updates = number
            self._train(phase)

    def _train(self, phase: Phase, watch: Questions | None = None) -> None:
        model, values = self.model, cast(dict[str, Any], self.model.logger.name_to_value)
        asks = phase.num_warm == 1
        with self.precision.update(), unasked(model, self._static, self._rate, asks), watch or contextlib.nullcontext():
            model.train(gradient_steps=1, batch_size=model.batch_size)
        phase.numbers = {name: values.pop(name) for name, v in list(values.items()) if isinstance(v, Later)}

    def _launch(self, why: str) -> None:
        note(f"learner updates launch kernel by kernel, without a CUDA graph: {why}")
        self.graphs, self.replay.device = None, self.model.device

    def losses(self) -> dict[str, float]:
        """Return the losses of the last update by log name, and write them to the log; waits for a GPU."""
        values = self.model.logger.name_to_value
        values.update({name: float(number) for name, number in self._numbers.items()})
        self._numbers = {}
        return {name: float(value) for name, value in values.items() if name.endswith("loss")}
