"""A training step as one CUDA graph: recorded once, then started by a single call.

A step is hundreds of kernels of some microseconds each, and the host takes longer to start them than the GPU to run
them, unless model and images are large. A graph starts them all at once; they are the same kernels in the same order.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from vitrail.training.fast.streams import stream
from vitrail.training.trainer import Listener, Trainer

WARM_UP = 3  # steps before the recording: what is compiled, measured or allocated on first use must be there


Update = Callable[[Tensor, Tensor], Tensor]


class Recorded:
    """Calls `update(pixels, targets)`, which must be the same one, and do the same to the same memory, on every call.
    What differs from call to call (learning rates, the seed of the generator) has to lie in tensors or in the generator
    of the GPU. What can't be recorded, for it waits for the GPU or asks the host, goes on step by step; `forget` clears
    what a half recorded update has left. The update is not kept: a loop and its recorded step would hold each other,
    and the memory of both."""

    def __init__(self, forget: Callable[[], None], note: Callable[[str], None]):
        self.forget, self.note, self.calls, self.fails = forget, note, 0, False
        self.graph: torch.cuda.CUDAGraph | None = None
        self.memory: tuple[Tensor, ...] = ()  # of what the graph reads and writes: pixels, targets, result
        self.stream = stream(torch.cuda.current_device(), "record")

    def __call__(self, update: Update, pixels: Tensor, targets: Tensor) -> Tensor:
        self.calls += 1
        if self.graph is None and self.calls > WARM_UP and not self.fails:
            self._record(update, pixels, targets)
        if self.graph is None or pixels.shape != self.memory[0].shape:
            return self._aside(update, pixels, targets)
        for place, value in zip(self.memory, (pixels, targets), strict=False):
            place.copy_(value)
        self.graph.replay()
        return self.memory[2]

    def _aside(self, update: Update, pixels: Tensor, targets: Tensor) -> Tensor:
        """On the stream that will be recorded: the gradients' memory belongs to the stream that asked for it first."""
        here = torch.cuda.current_stream()
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            result = update(pixels, targets)
        here.wait_stream(self.stream)
        return result

    def _record(self, update: Update, pixels: Tensor, targets: Tensor) -> None:
        places = torch.empty_like(pixels), torch.empty_like(targets)
        graph, random = torch.cuda.CUDAGraph(), torch.cuda.get_rng_state()
        try:
            # Other threads, such as the one that augments, go on meanwhile and may ask for memory.
            with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                result = update(*places)
        except RuntimeError as error:
            self.fails = True
            self.forget()
            _renew_generator(random)
            self.note(f"  note: steps are started kernel by kernel, for they can't be recorded as one: {reason(error)}")
        else:
            self.graph, self.memory = graph, (*places, result)

    def close(self) -> None:
        """Gives back the memory of the graph, which is kept apart from all other until it goes."""
        self.graph, self.memory = None, ()
        self.forget()
        torch.cuda.empty_cache()


class RecordedSteps(Listener):
    """Puts a recorded update in the place of a trainer's own. Its optimizer then reads its rates on the device."""

    def __init__(self, trainer: Trainer, note: Callable[[str], None]):
        self.recorded = Recorded(trainer.optimizer.zero_grad, note)
        trainer.listeners.append(self)
        trainer.recorded = self.update
        self.on_load(trainer)
        trainer.optimizer._warned_capturable_if_run_uncaptured = True  # the first steps are not, as they should

    def update(self, trainer: Trainer, inputs: Tensor, targets: Tensor) -> Tensor:
        def update(inputs: Tensor, targets: Tensor) -> Tensor:
            # Memory that runs out while a step is recorded calls for no smaller micro-batches: it goes on unrecorded.
            trainer.shrinks = not torch.cuda.is_current_stream_capturing()
            try:
                return trainer.update(inputs, targets)
            finally:
                trainer.shrinks = True

        return self.recorded(update, inputs, targets)

    def on_load(self, trainer: Trainer) -> None:
        """A loaded state brings the groups of the machine that saved it."""
        for group in trainer.optimizer.param_groups:
            lr = float(group["lr"])
            group["capturable"], group["lr"] = True, torch.tensor(lr, device=trainer.device)

    def close(self) -> None:
        self.recorded.close()


def reason(error: BaseException) -> str:
    """Why a recording broke off, in a line: the end of one that is broken raises an error over that which broke it."""
    first = error.__context__ or error
    return (str(first).strip() or type(first).__name__).splitlines()[0]


def _renew_generator(state: Tensor) -> None:
    """A recording that broke off leaves the GPU's generator waiting for its end; a new one takes its place."""
    device = torch.cuda.current_device()
    torch.cuda.default_generators[device].graphsafe_set_state(torch.Generator(f"cuda:{device}"))
    torch.cuda.set_rng_state(state)
