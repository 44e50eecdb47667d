"""adapter.safetensors: what a cheap tuning has learned, and its head, without the base; the small file to share.

The file names its base by a hash of the base's weights under our names, so that the same weights count as the same in
whatever dialect they lie on the disk. On another base it is refused.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from torch import nn

from vitrail.errors import VitrailError, nearest
from vitrail.models import ModelSettings, Preprocessing, catalog
from vitrail.models.checks import setting_names, setting_values
from vitrail.models.tuning import PARTS, add_parts, is_part, learns, take_parts
from vitrail.weights.checkpoint import Checkpoint, understand
from vitrail.weights.files import RawFile, read_file, read_json, read_source
from vitrail.weights.fit import fit
from vitrail.weights.header import ADAPTER, Header, header_of, read_header, settings_of, unwrapped
from vitrail.weights.published import in_cache
from vitrail.weights.rules import State, group_names
from vitrail.weights.save import write_weights
from vitrail.weights.shipped import shipped, shipped_names

# What may differ between a base and the model that was tuned on it: the head, the size of the images, randomness.
FREE = {"num_classes", "image_size", "tuning", "drop_path", "dropout", "attention_dropout"}


@dataclass(frozen=True)
class Base:
    """The model that an adapter stands on."""

    hashes: tuple[str, ...]  # of the file's weights, and of them as fitted to the size of the run
    file: str  # its name, for people
    hub: str | None = None  # org/name, where it came from there


def fingerprint(state: State, kind: str) -> str:
    """SHA-256 of a base's weights in fp32, by name: all but the head, and the parts that this kind adds."""
    digest = hashlib.sha256()
    for name in sorted(state):
        if not (name.startswith("head") or (kind in PARTS and is_part(name, kind))):
            tensor = state[name].detach().float().cpu().contiguous()
            digest.update(f"{name} {list(tensor.shape)} ".encode())
            digest.update(tensor.flatten().numpy().data)
    return digest.hexdigest()


def base_of(checkpoint: Checkpoint, model: nn.Module, kind: str, source: str = "") -> Base:
    """The base that `model` was made of; to be asked before it is trained."""
    hashes = dict.fromkeys([fingerprint(checkpoint.state, kind), fingerprint(unwrapped(model).state_dict(), kind)])
    hub = source.removeprefix("hf://") if source.startswith("hf://") else None
    return Base(tuple(hashes), hub or checkpoint.path.name, hub)


def save_adapter(
    model: nn.Module,
    path: str | Path,
    kind: str,
    base: Base,
    labels: list[str] | None = None,
    preprocessing: Preprocessing | None = None,
    name: str | None = None,
    about: dict[str, Any] | None = None,
) -> Path:
    """Writes what a tuning of this `kind` has learned, with all that is needed to rebuild the model on its base."""
    path, model = Path(path).expanduser(), unwrapped(model)
    settings = settings_of(model)
    if kind == "full":
        raise VitrailError("A model that was tuned in full has no adapter: save it as a whole (save_weights).")
    if path.suffix != ".safetensors":
        raise VitrailError(f"An adapter keeps its settings in a safetensors header; name it {path.stem}.safetensors.")
    pre = preprocessing or getattr(model, "preprocessing", None) or Preprocessing().suited(settings)
    header = json.loads(header_of(settings, pre, labels, name, about)) | {"tune": kind, "base": asdict(base)}
    state = {n: tensor.detach().cpu() for n, tensor in model.state_dict().items() if learns(n, kind)}
    return write_weights(path, state, {ADAPTER: json.dumps(header, ensure_ascii=False)})


@dataclass(frozen=True)
class AdapterFile:
    """What `save_adapter` wrote."""

    path: Path
    kind: str
    state: State
    base: Base
    header: Header

    @property
    def settings(self) -> ModelSettings:
        return self.header.settings


def read_adapter(source: str | PathLike[str]) -> AdapterFile:
    path = Path(source).expanduser().absolute()
    if path.is_dir():
        path = path / "adapter.safetensors"
    if not path.is_file():
        raise VitrailError(f"There is no file {fspath(source)}; give an adapter.safetensors, or the run that has one.")
    return parse(read_file(path))


def parse(raw: RawFile) -> AdapterFile:
    if ADAPTER not in raw.metadata:
        raise VitrailError(f"{raw.path} is no adapter of ours; PEFT's are read by load_peft, whole models by load.")
    text = raw.metadata[ADAPTER]
    header = read_header(raw.path, text)
    told = json.loads(text)
    try:
        base = Base(tuple(told["base"]["hashes"]), str(told["base"]["file"]), told["base"]["hub"])
        return AdapterFile(raw.path, str(told["tune"]), raw.state, base, header)
    except (KeyError, TypeError) as error:
        raise VitrailError(f"{raw.path}: its header does not say what it stands on ({error}).") from None


def complete(raw: RawFile, base: str | PathLike[str] | None = None) -> Checkpoint:
    """The whole model: the adapter on its base, which is looked for beside it, where its run found it, and in the hub's
    cache; or is the one that is given."""
    file = parse(raw)
    below = _given(file, base) if base is not None else _found(file)
    fitted = fit(below, file.settings, "new")
    header = file.header
    return Checkpoint(
        raw.path,
        "vitrail",
        fitted.state | file.state,
        file.settings,
        stated=set(setting_names(type(file.settings))),
        preprocessing=header.preprocessing,
        labels=header.labels,
        name=header.name,
        unknown=[],
        about=header.about,
    )


def _given(file: AdapterFile, base: str | PathLike[str]) -> Checkpoint:
    checkpoint = understand(read_source(base))
    if (found := fingerprint(checkpoint.state, file.kind)) not in file.base.hashes:
        raise VitrailError(_another(file, found, fspath(base)))
    return checkpoint


def _another(file: AdapterFile, found: str, given: str) -> str:
    return (
        f"{file.path} belongs to another base: to {file.base.file}, whose sha256 begins {file.base.hashes[0][:12]}, "
        f"and not to {given}, whose begins {found[:12]}."
    )


def _found(file: AdapterFile) -> Checkpoint:
    for place in _places(file):
        try:
            checkpoint = understand(read_source(place))
        except VitrailError:
            continue
        if fingerprint(checkpoint.state, file.kind) in file.base.hashes:
            return checkpoint
    raise VitrailError(
        f"{file.path} needs its base, {file.header.name or 'a model'} in {file.base.file} (sha256 "
        f"{file.base.hashes[0][:12]}…), which is neither beside it nor in the hub's cache: put it beside it, or, in "
        "Python, name it with base=."
    )


def _places(file: AdapterFile) -> Iterator[Path]:
    """Where the base may lie, each only if there is something: in the run, then inside, then in the hub's cache."""
    folder = file.path.parent
    places = [folder / "model.safetensors", folder / Path(file.base.file).name]
    recipe = read_json(folder / "run.json").get("recipe")
    if isinstance(recipe, dict) and isinstance(weights := recipe.get("weights"), str):
        places.append(Path(weights).expanduser())
    yield from (place for place in places if place.exists() and place != file.path)
    yield from filter(None, map(shipped, shipped_names()))
    entry = catalog().get(file.header.name or "")
    for name in dict.fromkeys([file.base.hub, entry.hub if entry else None]):
        if name and (cached := in_cache(name)):
            yield cached


class Adapters:
    """Several adapters on one base in one process: each is read once, and `use` switches the model by name, in place.

    >>> adapters = Adapters(model)
    >>> adapters.add("pets", "runs/pets/adapter.safetensors")
    >>> adapters.use("pets")  # the model now answers with the classes of pets
    >>> adapters.use(None)  # the base again, exactly
    """

    def __init__(self, model: nn.Module):
        self.model: Any = unwrapped(model)
        self.files: dict[str, AdapterFile] = {}
        self.active: str | None = None
        self._base = settings_of(self.model)
        self._preprocessing = getattr(self.model, "preprocessing", None)
        self._tensors: State = {}  # of the base, that the active adapter has written over
        self._outputs: dict[str, Any] = {}  # the layers of the base that give its logits
        self._prints: dict[str, str] = {}  # of the base, by kind

    def add(self, name: str, path: str | PathLike[str]) -> AdapterFile:
        """Reads an adapter, and refuses one that was made on another base."""
        file, active = read_adapter(path), self.active
        if file.kind not in self._prints:
            self.use(None)
            self._prints[file.kind] = fingerprint(self.model.state_dict(), file.kind)
            self.use(active)
        if (found := self._prints[file.kind]) not in file.base.hashes:
            raise VitrailError(_another(file, found, "this model"))
        if file.kind in PARTS and (there := getattr(self._base, "tuning", None)) is not None:
            raise VitrailError(f"The model holds {there} already; load the base without them first.")
        own, theirs = setting_values(self._base), setting_values(file.settings)
        if wrong := [f"{key}={theirs[key]!r}" for key in own if key not in FREE and own[key] != theirs.get(key)]:
            raise VitrailError(f"{file.path} was made with {', '.join(wrong)}, unlike this model; load it by itself.")
        if active == name:  # what is in use goes before its file does, and comes back as the new one
            self.use(None)
        self.files[name] = file
        self.use(active)
        return file

    def use(self, name: str | None) -> None:
        """Switches to the adapter of this name; None takes it away. The base's weights are neither read nor copied."""
        if name is not None and name not in self.files:
            known = ", ".join(self.files) or "none yet"
            raise VitrailError(f"There is no adapter {name!r}; added: {known}.{nearest(name, self.files)}")
        if name == self.active:
            return
        self._take_away()
        if name is not None:
            self._put_on(self.files[name])
        self.active = name
        self.model.train(self.model.training)  # for the parts that are new

    def _put_on(self, file: AdapterFile) -> None:
        model, settings = self.model, file.settings
        tuning: Any = getattr(settings if file.kind in PARTS else self._base, "tuning", None)
        if file.kind in PARTS:
            add_parts(model, tuning)
        for head in ("head", "head_distillation"):
            weight = file.state.get(f"{head}.output.weight")
            if weight is not None:
                layer = getattr(model, head)
                self._outputs[head] = layer.output
                layer.output = nn.Linear(weight.shape[1], len(weight), f"{head}.output.bias" in file.state)
                layer.to(next(model.parameters()))
        present = model.state_dict()
        if strange := [name for name in file.state if name not in present]:
            raise VitrailError(f"{file.path} holds {group_names(strange)}, which this model has no place for.")
        self._tensors = {
            name: present[name].clone()
            for name in file.state
            if not ((file.kind in PARTS and is_part(name, file.kind)) or ".output." in name)
        }
        model.load_state_dict(file.state, strict=False)
        changes: dict[str, Any] = {"num_classes": settings.num_classes, "tuning": tuning}
        model.settings = replace(self._base, **changes)
        model.preprocessing = file.header.preprocessing

    def _take_away(self) -> None:
        if self.active is None:
            return
        model = self.model
        if self.files[self.active].kind in PARTS:
            take_parts(model)
        model.load_state_dict(self._tensors, strict=False)
        for head, output in self._outputs.items():
            getattr(model, head).output = output
        self._tensors, self._outputs = {}, {}
        model.settings, model.preprocessing = self._base, self._preprocessing
