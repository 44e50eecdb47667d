"""What a run can be told: one dataclass is the Python API, the command line and the file kept with the run."""

from dataclasses import asdict, dataclass, fields
from os import PathLike, fspath
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from vitrail.errors import VitrailError, nearest

R = TypeVar("R")


@dataclass(frozen=True)
class Recipe:
    """The options of `train`. What is left out is chosen by the size of the data, printed, and saved with the run."""

    model: str | None = None
    """Architecture by name (`vitrail models`); by default that of the weights, or one that suits the data."""
    weights: str = "auto"
    """auto, none (from scratch), or a checkpoint, run folder, or hf://org/name to start from."""
    task: Literal["classify", "segment", "detect", "spoof"] = "classify"
    """What is learned: a class for each image, a class for each pixel, boxes, or live faces from presented ones."""
    head: Literal["linear", "fcn", "upernet", "faster_rcnn", "mask_rcnn", "retinanet"] | None = None
    """What stands on the backbone: linear, fcn or upernet segment, the others detect."""
    pyramid: Literal["adapter", "simple", "own"] | None = None
    """Maps at several strides out of a backbone: ViT-Adapter, ViTDet's simple one, or a Swin's own."""
    tune: Literal["full", "head", "probe", "adapter", "lora", "prompt", "bias"] = "full"
    """What learns: all, the head, nothing (a probe is solved for), or a head with adapters, LoRA, prompts, biases."""
    adapter_width: int = 32
    """Width of an adapter's bottleneck."""
    adapter_place: Literal["sequential", "parallel"] = "sequential"
    """Adapters after the MLP, or beside it."""
    lora_rank: int = 8
    """Rank of LoRA's matrices."""
    lora_targets: str = "qkv,proj"
    """Which layers get LoRA: of qkv, proj and mlp."""
    prompt_tokens: int = 10
    """Prompts in each attention."""
    epochs: int | None = None
    """Passes over the training images."""
    batch_size: int | None = None
    """Images per step, over all processes and accumulated micro-batches."""
    image_size: int | None = None
    """Side of the images that the model sees; more than it was trained with is fine."""
    fit: Literal["crop", "pad", "stretch"] | None = None
    """How an image is brought to that size; by default as the weights had it, else crop."""
    lr: float | None = None
    """Peak learning rate (of the head and the last block, where layers differ)."""
    optimizer: Literal["auto", "adamw", "muon"] = "auto"
    """muon: for a transformer's inner matrices, AdamW for the rest; auto: that from scratch and after MAE."""
    weight_decay: float | None = None
    """Decay of matrices; norms, biases, tokens and positions have none."""
    layer_decay: float | None = None
    """The learning rate of each block relative to the next one."""
    warmup: float | None = None
    """Epochs of rising learning rate before the cosine."""
    drop_path: float | None = None
    """Drop path of the last block; earlier blocks have less, linearly."""
    augment: Literal["auto", "none", "light", "medium", "strong"] = "auto"
    """How much training images are changed at random."""
    flip: float | None = None
    """Probability of a mirror image; set 0 where left and right matter, as with digits."""
    mixup: float | None = None
    """MixUp's alpha; 0 switches it off."""
    cutmix: float | None = None
    """CutMix's alpha; 0 switches it off."""
    calm: int = 0
    """Epochs at the end in which images are cropped and mirrored, but not changed otherwise, and not mixed."""
    label_smoothing: float | None = None
    """Certainty taken from the true class and spread over all."""
    teacher: str | None = None
    """A trained classifier of the same classes to learn from as well: a run folder, a checkpoint, or hf://org/name."""
    distill: Literal["hard", "soft"] | None = None
    """What to learn from the teacher: its answer (hard) or its probabilities (soft)."""
    alpha: float | None = None
    """The teacher's share of the loss; the labels have the rest."""
    temperature: float | None = None
    """With --distill soft: the higher, the more its less likely classes count."""
    balance: Literal["auto", "none", "weights", "sampling"] = "auto"
    """For classes of unequal size: weigh their losses, or draw them equally often; auto: the latter for spoof alone."""
    ema: float | None = None
    """Decay of the running average of the weights, which is what is kept; 0 switches it off."""
    clip: float = 1.0
    """Largest norm of a gradient; 0 switches it off."""
    micro_batch: int | None = None
    """Images per forward pass and process; the rest of a batch is accumulated. Halved when memory runs out."""
    val: float | None = None
    """Part of the training images to hold out for validation where the data has no val/ of its own."""
    refit: Literal["auto", "on", "off"] = "auto"
    """Train once more on all images when those held out have chosen; auto: from weights, up to 20,000 images."""
    protocol: Literal["disjoint", "official"] = "disjoint"
    """With --task spoof, when a subject is in two splits: refuse, or (official) go on and record it."""
    fold: str | None = None
    """With --task spoof: 1/3 tests on the first of three parts of all subjects, and so on."""
    leave_out: str | None = None
    """With --task spoof: the domain to test on; the others teach."""
    boxes: str | None = None
    """With --task spoof: a table of face boxes, path,left,top,width,height."""
    margin: float = 0.3
    """With --task spoof: what a face box gets on every side, as a part of its longer side."""
    seed: int = 0
    """Of the split, the order, the augmentation and the initial weights."""
    out: Path | None = None
    """Run folder; by default runs/NAME-OF-DATA."""
    resume: bool = False
    """Continue the run in --out exactly where it stopped."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 on GPUs that have it, else fp32."""
    compile: Literal["auto", "on", "off"] = "auto"
    """torch.compile; auto: on a GPU, where the run is long enough to repay it."""
    device: str | None = None
    """cpu or cuda; the GPU where there is one."""
    workers: int | None = None
    """Threads that decode images; by default one per core."""
    cache: Literal["auto", "memory", "disk", "off"] = "auto"
    """Where decoded images are kept for later epochs; auto: by their size."""
    wandb: bool = False
    """Also log to Weights & Biases."""
    mlflow: bool = False
    """Also log to MLflow."""

    def __post_init__(self) -> None:
        check(self)
        for name in ("head", "pyramid"):
            if self.task not in DENSE and getattr(self, name) is not None:
                raise VitrailError(f"--{name} goes with --task segment or detect.")
        for name, default in SPOOF.items():
            if self.task != "spoof" and getattr(self, name) != default:
                raise VitrailError(f"--{name.replace('_', '-')} goes with --task spoof.")
        if self.optimizer == "muon" and self.tune in ("head", "prompt", "bias"):
            raise VitrailError(
                "--optimizer muon is for matrices inside of a transformer, and with "
                f"--tune {self.tune} none of them learns: leave it out."
            )
        if self.task == "spoof" and self.refit == "on":
            raise VitrailError("--refit on would change the weights after their threshold was chosen: leave it out.")
        if self.task == "spoof" and self.teacher is not None:
            raise VitrailError("--teacher is for --task classify.")
        for name in ("distill", "alpha", "temperature"):
            if self.teacher is None and getattr(self, name) is not None:
                raise VitrailError(f"--{name} goes with --teacher, and there is none.")
        if self.temperature is not None and self.distill != "soft":
            raise VitrailError("--temperature goes with --distill soft: a hard answer has none.")


DENSE = ("segment", "detect")  # tasks with more than one answer for an image
SPOOF = {"protocol": "disjoint", "fold": None, "leave_out": None, "boxes": None, "margin": 0.3}  # its options
PARTS = {  # those of each --tune
    "adapter": ("adapter_width", "adapter_place"), "lora": ("lora_rank", "lora_targets"), "prompt": ("prompt_tokens",),
}  # fmt: skip
SWITCHES = {"resume", "wandb", "mlflow"}
# What may differ when a run is resumed: where and how fast it runs. Another device, compiler or micro-batch rounds and
# draws drop path differently; everything else stays the same to the bit.
MACHINE = {"out", "resume", "device", "workers", "cache", "wandb", "mlflow", "compile", "micro_batch"}
MACHINE |= {"teacher"}  # its place; that it is the same one is checked by its weights


def made(kind: type[R], verb: str, options: dict[str, Any], recipe: R | None = None) -> R:
    """From Python's arguments, over what a recipe says, with an error that names the nearest option."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    if recipe is not None:
        options = {name: getattr(recipe, name) for name in names} | options
    for name in options:
        if name not in names:
            raise VitrailError(f"{name!r} is not an option of {verb}.{nearest(name, names)}")
    if options.get("weights", "") is None:
        options["weights"] = "none"
    elif isinstance(options.get("weights"), PathLike):  # a path, or a run
        options["weights"] = fspath(options["weights"])
    for name in ("teacher", "boxes"):
        if isinstance(options.get(name), PathLike):
            options[name] = fspath(options[name])
    if options.get("out") is not None:
        options["out"] = Path(options["out"]).expanduser()
    return kind(**options)


def to_dict(recipe: Any) -> dict[str, Any]:
    """JSON-able."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(recipe).items()}


def concerning(recipe: Any) -> dict[str, Any]:
    """`to_dict` for a reader: without what is left open, and without defaults that are of another kind of run."""
    values, default = to_dict(recipe), to_dict(type(recipe)())
    others = {name for tune, names in PARTS.items() if values.get("tune") != tune for name in names} | SWITCHES
    if values.get("task") != "spoof":
        others |= SPOOF.keys()
    return {
        name: value
        for name, value in values.items()
        if value is not None and (name not in others or value != default[name])
    }


def parts_of(recipe: Recipe) -> dict[str, Any]:
    """What --tune adds to a model, in the words of `vitrail.models.tuning.Tuning`."""
    if recipe.tune == "adapter":
        return {"width": recipe.adapter_width, "place": recipe.adapter_place}
    if recipe.tune == "lora":
        targets = tuple(word.strip() for word in recipe.lora_targets.split(",") if word.strip())
        return {"rank": recipe.lora_rank, "targets": targets}
    return {"tokens": recipe.prompt_tokens}


def shared(recipe: Any) -> dict[str, Any]:
    """For the file that is passed on: without the places of this machine."""
    values = to_dict(recipe)
    if values["weights"] not in ("auto", "none") and not values["weights"].startswith("hf://"):
        values["weights"] = Path(values["weights"]).name
    if (teacher := values.get("teacher")) and not teacher.startswith("hf://"):
        values["teacher"] = Path(teacher).name
    if boxes := values.get("boxes"):
        values["boxes"] = Path(boxes).name
    return {name: value for name, value in values.items() if name != "out"}


def from_dict(kind: type[R], values: dict[str, Any]) -> R:
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(values.keys() - known):
        raise VitrailError(f"The run was made with options that this version does not know: {', '.join(unknown)}.")
    out = values.get("out")
    return kind(**{**values, "out": None if out is None else Path(out)})


RANGES: dict[str, tuple[float, float | None]] = {
    "epochs": (0, None), "adapter_width": (1, None), "lora_rank": (1, None), "prompt_tokens": (1, None),
    "batch_size": (1, None), "image_size": (1, None), "micro_batch": (1, None),
    "workers": (0, None), "seed": (0, 2**63 - 1), "lr": (0, None), "weight_decay": (0, None), "layer_decay": (0, 1),
    "warmup": (0, None), "drop_path": (0, 1), "flip": (0, 1), "mixup": (0, None), "cutmix": (0, None),
    "label_smoothing": (0, 1), "ema": (0, 1), "clip": (0, None), "val": (0, 0.9), "mask_ratio": (0.05, 0.95),
    "calm": (0, None), "alpha": (0, 1), "temperature": (0.01, None), "margin": (0, 3),
    "crop": (0.01, 1),
}  # fmt: skip


def check(recipe: Any) -> None:
    """Refuses what can't be meant, before anything is read or written. From Python, anything may have been given."""
    for name, hint in get_type_hints(type(recipe)).items():
        value, option = getattr(recipe, name), f"--{name.replace('_', '-')}"
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        if value is None and type(None) in kinds:
            continue
        if choices := [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]:
            if value not in choices:
                hint = nearest(str(value), choices)
                raise VitrailError(f"{option} {value} is not known: use {', '.join(choices)}.{hint}")
        elif float in kinds or int in kinds:
            whole = float not in kinds
            if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
                raise VitrailError(f"{option} must be a {'whole ' if whole else ''}number, got {value!r}.")
        elif not isinstance(value, tuple(kinds)):
            raise VitrailError(f"{option} can't be {value!r}.")
    for name, (low, high) in RANGES.items():
        value = getattr(recipe, name, None)
        if value is not None and not (value >= low and (high is None or value <= high)):
            wanted = f"at least {low}" if high is None else f"from {low} to {high}"
            raise VitrailError(f"--{name.replace('_', '-')} must be {wanted}, got {value}.")
