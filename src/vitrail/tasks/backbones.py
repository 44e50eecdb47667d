"""The model that a run starts from: which architecture, which weights, and a head for the classes at hand."""

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import nn

from vitrail.data.samples import Sample, some
from vitrail.errors import VitrailError
from vitrail.models import CNNSettings, MAESettings, Preprocessing, Settings, build, create_model, resolve
from vitrail.models.registry import change, model_settings, takes_distillation
from vitrail.reasons import Reason
from vitrail.tasks.planning import by
from vitrail.weights import model_from, read_checkpoint
from vitrail.weights.adapter_file import base_of
from vitrail.weights.checkpoint import Checkpoint, backbone_of
from vitrail.weights.header import DENSE
from vitrail.weights.shipped import CLASSIFIER, check_architecture, shipped

SHAPE = ("version", "width", "depth", "depths", "patch_size", "stem")  # of a transformer: fields of its settings
TINY = 40  # pixels: what a model of photographs knows is of little use below


@dataclass
class Start:
    model: nn.Module
    preprocessing: Preprocessing
    name: str  # of the architecture
    pretrained: bool
    reasons: list[Reason]  # the first line of the plan
    masked: bool = False  # were its weights learned by a masked autoencoder, without labels?
    base: dict[str, Any] | None = None  # the weights by hash and name, where an adapter will stand on them
    image_side: int = 0  # the larger side of a typical image, in pixels
    checkpoint: Checkpoint | None = field(default=None, repr=False)  # that it came from, which may hold more

    @property
    def why(self) -> str:
        return " ".join(map(str, self.reasons))


def start_model(
    model: str | None,
    weights: str,
    classes: list[str],
    image_size: int | None,
    fit: str | None,
    largest: int,
    gpu: bool,
    taught: bool = False,
    tune: str = "full",
    found: tuple[Checkpoint | None, list[Reason]] | None = None,
) -> Start:
    """`largest` is the larger side of a typical image: small images get a model with small patches, as does a small
    size that is asked for from scratch. With a teacher, `taught`, a model that has a place for a distillation token
    gets one. `found` is what `find_weights` gave."""
    typical = largest
    if weights == "none":
        largest = image_size or largest
    checkpoint, why = found or find_weights(model, weights, largest, gpu)
    original = checkpoint
    if checkpoint is not None and isinstance(checkpoint.settings, DENSE):
        checkpoint, why = backbone_of(checkpoint), [Reason("start_backbone", source=weights)]
    masked, whole = False, checkpoint
    changes: dict[str, Any] = {"num_classes": len(classes)}
    if image_size is not None:
        changes["image_size"] = image_size
    if checkpoint is None:
        name = resolve(model or suited(largest, gpu))[0].name
        settings = model_settings(model or name, **changes)
        if model is None or isinstance(settings, CNNSettings):
            changes.setdefault("image_size", suited_side(largest))
        more, token = _token(settings) if taught else ({}, [])
        net = create_model(model or name, **changes, **more)
        why = why + token + _stem(net.settings)
    else:
        masked = isinstance(checkpoint.settings, MAESettings)
        if masked:
            checkpoint = encoder_of(checkpoint)
            why = [Reason("start_encoder", source=weights)]
        if model is not None:
            check_asked(model, checkpoint, weights, taught)
        # A head for the same labels is worth keeping; any other is solved for anew.
        same = checkpoint.labels == classes
        size = image_size or checkpoint.preprocessing.size
        if image_size is None and largest <= max(learnt := checkpoint.settings.image_size):
            size = min(size, learnt)  # it may look at larger images than it learned from; small ones stay small
        more, token = _token(checkpoint.settings) if taught else ({}, [])
        changes, why = changes | more, why + token
        net = model_from(checkpoint, "auto" if same else "new", **{**changes, "image_size": size})
        name = checkpoint.name or "custom"
    pre: Preprocessing = net.preprocessing  # type: ignore[assignment]
    if fit is not None:
        pre = replace(pre, fit=fit)
    elif pre.fit == "native":
        pre = replace(pre, fit="crop")
    net.preprocessing = pre  # type: ignore[assignment]
    base = None
    if whole is not None and tune != "full" and not isinstance(net.settings, CNNSettings):  # whose statistics move
        hub = resolve(model or suited(largest, gpu))[0].hub if weights == "auto" else None
        source = CLASSIFIER if whole.path == shipped() else f"hf://{hub}" if hub else weights
        base = asdict(base_of(whole, net, "head" if tune == "probe" else tune, source))
    return Start(net, pre, name, checkpoint is not None, why, masked, base, typical, original)


def encoder_of(checkpoint: Checkpoint) -> Checkpoint:
    """A masked autoencoder's encoder as the classifier that its paper fine-tunes: the mean of the patches, each of
    which was trained to say something, where nothing was asked of the class token; then the last norm. The kind of
    positions stays what it was."""
    settings: Any = checkpoint.settings
    prefix, state = "encoder.", checkpoint.state
    state = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
    name = checkpoint.name and checkpoint.name.removeprefix("mae_")
    if name and "_" not in name:
        name = f"vit_{name}"
    settings = change(settings.encoder, pool="mean", norm_after_pool=True)
    return replace(checkpoint, state=state, settings=settings, name=name)


def _token(settings: Settings) -> tuple[dict[str, Any], list[Reason]]:
    """What a student needs to have two heads, where it can and has not, and the reason that says so."""
    if not takes_distillation(settings) or getattr(settings, "distillation_token", False):
        return {}, []
    return {"distillation_token": True}, [Reason("start_token")]


def _stem(settings: Any) -> list[Reason]:
    if not isinstance(settings, CNNSettings) or not settings.small_stem:
        return []
    return [Reason("start_small_stem", size="×".join(map(str, settings.image_size)))]


def check_asked(model: str, checkpoint: Checkpoint, weights: str, taught: bool = False) -> None:
    """A model that is named beside weights has to be of their shape, and to have what its name says: vit_b16:pool=mean.
    A student gets its distillation token either way."""
    asked, there = model_settings(model), checkpoint.settings
    said = resolve(model)[1].keys() - {"image_size", "num_classes", *(["distillation_token"] if taught else [])}
    # Of a convolutional network the rest is settled by the size of its images.
    names = ("arch",) if CNNSettings in (type(asked), type(there)) else (*SHAPE, *sorted(said.difference(SHAPE)))
    pairs = {name: (getattr(there, name, None), getattr(asked, name, None)) for name in names}
    other = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    if other:
        its, mine = (", ".join(f"{name} {pair[i]}" for name, pair in other.items()) for i in (0, 1))
        holds = checkpoint.name or "another model"
        raise VitrailError(
            f"{weights} holds {holds} ({its}), not {model} ({mine}): leave --model out, or name other weights.",
            code="other_model", differs=other,
        )  # fmt: skip


def set_drop_path(model: nn.Module, rate: float) -> nn.Module:
    """The same model with another rate of drop path; the weights are kept."""
    settings: Any = model.settings
    if settings.drop_path == rate:
        return model
    other = build(change(settings, drop_path=rate))
    other.load_state_dict(model.state_dict())
    other.preprocessing = model.preprocessing  # type: ignore[assignment]
    return other


def suited(largest: int, gpu: bool, plain: bool = False) -> str:
    """`plain`: without convolutions. They are three times the work, so on a CPU it is plain, too."""
    if largest <= 20:
        return "vit_nano4"
    if largest <= 80:
        return f"{'hybrid' if gpu and not plain else 'vit'}_mini{4 if largest <= 40 else 8}"
    return "vit_s16" if gpu else "deit_ti16"


def suited_side(largest: int) -> int:
    """The side that images are brought to where neither a model nor its weights say otherwise."""
    return by(largest, ((21, 16), (41, 32), (81, 64)), 224)


def find_weights(model: str | None, weights: str, largest: int, gpu: bool) -> tuple[Checkpoint | None, list[Reason]]:
    """The checkpoint to start from, or None for a model from scratch; and why."""
    check_architecture(model)
    name = model or suited(largest, gpu)
    if weights == "none":
        return None, [Reason("start_scratch_asked", name=name)]
    if weights != "auto":
        checkpoint = read_checkpoint(weights, model)
        return checkpoint, [Reason("start_weights", what=checkpoint.name or "the model", source=weights)]
    entry, implied = resolve(name)
    if isinstance(entry.settings, CNNSettings):
        return None, [Reason("start_scratch_cnn", name=name)]
    changed = {key for key, value in implied.items() if key != "image_size" and getattr(entry.settings, key) != value}
    if entry.hub is None or changed:
        return _inside(model, largest) or (None, [Reason("start_scratch_unknown", name=name)])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            checkpoint = read_checkpoint(f"hf://{entry.hub}", entry.name)
        return checkpoint, [Reason("start_public", name=name, hub=entry.hub)]
    except VitrailError as error:
        # Without the advice, which is for those who asked for these very weights.
        detail = str(error).split("\n")[0].partition(";")[0].rstrip(".").replace(" can't be had: ", ": ")
        inside = _inside(model, largest, Reason("start_shipped_instead", name=name, detail=detail))
        return inside or (None, [Reason("start_scratch_missing", name=name, detail=detail)])


def _inside(model: str | None, largest: int, *more: Reason) -> tuple[Checkpoint, list[Reason]] | None:
    """The classifier that ships inside, where nobody asked for another model and images are not tiny: it has seen
    photographs, which is more than nothing."""
    if model is not None or largest <= TINY or shipped() is None:
        return None
    return read_checkpoint(CLASSIFIER), [Reason("start_shipped", name=CLASSIFIER), *more]


def typical_side(samples: list[Sample], side: Callable[[tuple[int, int]], int] = max) -> int:
    """The larger side of the median of a few images; or the smaller, with `side=min`."""
    sides = []
    for sample in samples[:: max(1, len(samples) // 16)]:
        try:
            sides.append(side(sample.decode().size))
        except VitrailError:
            continue
    if not sides:
        names = [sample.name for sample in samples]
        raise VitrailError(f"None of these images can be read: {some(names)}.", code="unreadable", names=names)
    return sorted(sides)[len(sides) // 2]
