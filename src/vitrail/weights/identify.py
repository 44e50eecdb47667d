"""Which model of the catalog a file is a checkpoint of.

Shapes decide what they can; between models that look alike (ViT-Ti and DeiT-Ti, 3 heads and 12) decide, in this order,
the file's own config, the model that the caller names, and the name of the file or its folder. What is then still open
is taken as the first in the catalog and said in one sentence.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError
from vitrail.models import Entry, ModelSettings, Preprocessing, catalog, resolve
from vitrail.models.building import FAMILIES
from vitrail.models.checks import setting_names
from vitrail.models.registry import change
from vitrail.weights.infer import differences

HOW = "say --architecture {0} (to `train`, --model {0}; to `vitrail.load`, architecture={0!r})"


@dataclass(frozen=True)
class Candidate:
    """An entry of the catalog, perhaps under a name that changes its settings (`swinv2_tiny_window16`)."""

    entry: Entry
    names: tuple[str, ...]
    implied: dict[str, Any]

    def settings(self, known: dict[str, Any]) -> ModelSettings:
        """The entry's, overruled by what its name implies and then by what is known of the file."""
        base = self.entry.settings
        changes = {**self.implied, **{key: value for key, value in known.items() if hasattr(base, key)}}
        if getattr(base, "layer_scale", None) is not None:
            changes.pop("layer_scale", None)  # shapes tell that there is one, not where it started
        return change(base, **changes)


@dataclass(frozen=True)
class Identity:
    entry: Entry | None
    settings: ModelSettings
    preprocessing: Preprocessing
    doubt: str | None = None  # a sentence, where something was assumed


def identify(
    path: Path,
    family: str,
    known: dict[str, Any],
    names: Sequence[str],
    configured: object,
    architecture: str | None,
    preprocessing: dict[str, Any],
) -> Identity:
    """`configured` is the architecture that the file's own config names, `architecture` the one that the caller does;
    `known` are the settings, and `preprocessing` the fields of it, that the file or what lies beside it tells."""

    def identity(candidate: Candidate, doubt: str | None = None) -> Identity:
        settings = candidate.settings(known)
        return Identity(candidate.entry, settings, _for(settings, candidate.entry.preprocessing, preprocessing), doubt)

    told = _named(architecture) if architecture else None
    if isinstance(configured, str) and (said := _known_name(configured)) and not _against(said, family, known):
        other = told is not None and told.entry is not said.entry
        return identity(
            said, f"{path} is, by its config, {configured}; {architecture} was not followed." if other else None
        )
    if told is not None:
        if wrong := _against(told, family, known):
            raise VitrailError(f"{path} is not a checkpoint of {architecture}: it has {', '.join(wrong)}.")
        return identity(told)

    candidates = [c for c in _candidates() if not _against(c, family, known)]
    if not candidates:
        return _unknown(path, family, known, preprocessing)
    for name in names:
        if (said := _known_name(name)) and not _against(said, family, known):
            return identity(said)
    readings: dict[tuple[ModelSettings, Preprocessing], str] = {}  # by name of the first candidate that leads to it
    candidates = _best_by_words(candidates, names)
    for candidate in candidates:
        reading = identity(candidate)
        readings.setdefault((reading.settings, reading.preprocessing), candidate.names[0])
    return identity(candidates[0], _doubt(path, readings) if len(readings) > 1 else None)


def _doubt(path: Path, readings: dict[tuple[ModelSettings, Preprocessing], str]) -> str:
    settings, pre = next(iter(readings))
    names = [*readings.values()]
    assumed = [
        f"{key} {getattr(settings, key)}"
        for key in setting_names(type(settings))
        if len({getattr(other, key) for other, _ in readings}) > 1
    ]
    assumed.append(f"mean {pre.mean} and deviation {pre.std}")
    taken = f"taken as {names[0]}, with {', '.join(assumed)}"
    return f"{path} may be {' or '.join(names)}; {taken}; {HOW.format(names[1])} if it is not."


def _unknown(path: Path, family: str, known: dict[str, Any], preprocessing: dict[str, Any]) -> Identity:
    """A model of no catalog: shapes, and for the rest what is usual."""
    kind: Any = FAMILIES[family]
    base: ModelSettings = kind()
    assumed: dict[str, Any] = {}
    if hasattr(base, "depth") and "heads" not in known:
        assumed["heads"] = _usual_heads(known["width"], 64)
    if family == "mae" and "decoder_heads" not in known:
        assumed["decoder_heads"] = _usual_heads(known["decoder_width"], 32)
    if family == "swinv2":
        assumed |= {key: value for key, value in (("window", 8), ("image_size", 256)) if key not in known}
    settings = change(base, **assumed, **{key: value for key, value in known.items() if hasattr(base, key)})
    pre = _for(settings, Preprocessing(), preprocessing)
    words = [f"{key} {value}" for key, value in assumed.items()]
    if "image_size" not in {**known, **assumed}:
        words.append(f"image_size {settings.image_size}")
    if known.get("position") == "none":
        words.append("no positions (fixed ones leave no trace)")
    if not {"mean", "std"} <= preprocessing.keys():
        words.append(f"mean {pre.mean} and deviation {pre.std}")
    doubt = f"{path} fits no model of the catalog; assumed: {', '.join(words)}." if words else None
    return Identity(None, settings, pre, doubt)


def _usual_heads(width: int, head_width: int) -> int:
    return next(heads for heads in range(max(width // head_width, 1), 0, -1) if width % heads == 0)


def _for(settings: ModelSettings, usual: Preprocessing, stated: dict[str, Any]) -> Preprocessing:
    return replace(replace(usual, **stated).suited(settings), **{k: v for k, v in stated.items() if k == "size"})


def _against(candidate: Candidate, family: str, known: dict[str, Any]) -> list[str]:
    """What speaks against a candidate."""
    settings = candidate.entry.settings
    if type(settings) is not FAMILIES[family]:
        return [f"the layout of a {family} model"]
    return differences(change(settings, **candidate.implied), known)


def _candidates() -> list[Candidate]:
    """All entries, and those of their other names that mean other settings."""
    candidates = []
    for entry in catalog().values():
        variants: list[tuple[dict[str, Any], list[str]]] = [({}, [entry.name])]
        for alias, implied in entry.aliases.items():
            same = next((names for changes, names in variants if changes == implied), None)
            if same is None:
                variants.append((implied, [alias]))
            else:
                same.append(alias)
        candidates += [Candidate(entry, tuple(names), implied) for implied, names in variants]
    return candidates


def _named(name: str) -> Candidate:
    entry, implied = resolve(name)
    return Candidate(entry, (name,), implied)


def _known_name(name: str) -> Candidate | None:
    try:
        return _named(name)
    except VitrailError:
        return None


def _best_by_words(candidates: list[Candidate], names: Sequence[str]) -> list[Candidate]:
    """Those that share most words with the name of the file, then of its folder: "deit_tiny_in1k" is no "vit_ti16"."""
    for name in names:
        words = _words(name)
        shared = [len(words & _words(*c.names)) for c in candidates]
        candidates = [c for c, count in zip(candidates, shared, strict=True) if count == max(shared)]
    return candidates


def _words(*names: str) -> set[str]:
    words = {word for name in names for word in re.split(r"[^a-z0-9]+", name.lower())}
    return {word for word in words if len(word) > 1 and not word.isdigit()}  # in "epoch_16" the number is no patch size
