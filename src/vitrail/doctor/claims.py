"""The checkpoint against the model that it claims to be: patch size, tokens, and whether all of it is there.

Also what a file that can't be loaded at all is told by: the same comparison says why in terms of the model.
"""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from vitrail.doctor.findings import Finding, blocks, fault, ok, warn
from vitrail.errors import VitrailError
from vitrail.models import ModelSettings, ViTSettings, catalog, resolve
from vitrail.models.building import FAMILIES
from vitrail.models.checks import pair
from vitrail.models.registry import change
from vitrail.predict import Predictor
from vitrail.weights import hf_config
from vitrail.weights.checkpoint import LAYOUTS
from vitrail.weights.files import RawFile, read_source
from vitrail.weights.header import HEADER, read_header
from vitrail.weights.infer import differences, infer
from vitrail.weights.load import without_memory
from vitrail.weights.rules import State, group_names

TELLING = ("patch_size", "class_token", "distillation_token", "registers", "depth")  # and depths
HEADER_SAYS = "its header"
TOKENS = {"class_token": "class token", "distillation_token": "distillation token", "registers": "register tokens"}


@dataclass
class Claim:
    who: str  # "its header", "--architecture vit_b32"
    facts: dict[str, Any]
    settings: ModelSettings | None = None  # where all of it is claimed
    sure: bool = True  # a file's name is no more than a hint

    @property
    def finding(self) -> Callable[..., Finding]:
        return fault if self.sure else warn


def file_findings(source: str, architecture: str | None, predictor: Predictor, said: list[str]) -> list[Finding]:
    """Of a file that was loaded."""
    try:
        raw = read_source(source)
    except VitrailError:  # a catalog name, whose file lies elsewhere
        return [ok(f"{predictor.name or 'the model'}, loaded")]
    state, family = _read(raw)
    found = [] if family is None else compare(state, family, _claims(raw, family, architecture))
    found = found or _almost(raw, state, family)
    for sentence in said:
        if "fits no model of the catalog" in sentence and found:
            continue
        found.append(warn("assumed", sentence, "the file does not say what it is", "name it with --architecture"))
    if not found:
        count, parameters = len(state), sum(tensor.numel() for tensor in state.values())
        found.append(
            ok(f"{predictor.name or 'a model of its own'}, {count} tensors, all in place", parameters=parameters)
        )
    return found


def explain_failure(source: str, architecture: str | None, error: VitrailError) -> list[Finding]:
    """Findings in place of an error, where the file is a checkpoint and what is wrong with it can be told."""
    try:
        raw = read_source(source)
    except VitrailError:
        raise error from None
    state, family = _read(raw)
    if family is None:
        raise error
    found = compare(state, family, _claims(raw, family, architecture))
    if not found:
        raise error
    return found


def _read(raw: RawFile) -> tuple[State, str | None]:
    """The tensors under our names, and the family; None for what is no Vision Transformer."""
    if HEADER in raw.metadata:
        settings = read_header(raw.path, raw.metadata[HEADER]).settings
        return raw.state, next(name for name, kind in FAMILIES.items() if type(settings) is kind)
    layout = next((layout for layout in LAYOUTS if layout.fits(raw.state)), None)
    return ({}, None) if layout is None else (layout.read(raw.state)[0], layout.family)


def _claims(raw: RawFile, family: str, architecture: str | None) -> list[Claim]:
    """Who says what the file is, the most trustworthy first."""
    claims: list[Claim] = []

    def claim(who: str, settings: ModelSettings | None, sure: bool = True) -> None:
        if settings is not None and type(settings) is FAMILIES[family]:
            facts = {key: getattr(settings, key) for key in ("patch_size", *TOKENS) if hasattr(settings, key)}
            claims.append(Claim(who, facts, settings, sure))

    if HEADER in raw.metadata:
        claim(HEADER_SAYS, read_header(raw.path, raw.metadata[HEADER]).settings)
    if architecture:
        claim(f"--architecture {architecture}", _settings(architecture))
    if isinstance(said := raw.config.get("architecture"), str):
        claim("its config.json", _known(said))
    if raw.config.get("model_type"):
        facts = hf_config.settings_from(raw.config)
        if "patch_size" in facts:
            claims.append(Claim("its config.json", {"patch_size": pair(facts["patch_size"], "patch_size")}))
    if not claims:
        for name in raw.names:
            claim(f"its name, {name},", _known(name), sure=False)
    return claims


def _settings(name: str) -> ModelSettings:
    entry, implied = resolve(name)
    return change(entry.settings, **implied)


def _known(name: str) -> ModelSettings | None:
    try:
        return _settings(name)
    except VitrailError:
        return None


def compare(state: State, family: str, claims: list[Claim]) -> list[Finding]:
    """Patch size, tokens and completeness, each against whoever claims something."""
    inner = {name.removeprefix("encoder."): t for name, t in state.items()} if family == "mae" else state
    for finding in (_patches(inner, claims), _tokens(inner, claims), _complete(state, claims)):
        if finding is not None:
            return [finding]  # the first explains the others: of a wrong patch size all shapes are wrong
    return []


def _patches(state: State, claims: list[Claim]) -> Finding | None:
    if "patch.weight" not in state:
        return None
    has = (int(state["patch.weight"].shape[2]), int(state["patch.weight"].shape[3]))
    for claim in claims:
        if (wanted := claim.facts["patch_size"]) != has:
            return claim.finding(
                "patch_size",
                f"the patch embedding in the file is {has[0]}×{has[1]}, {claim.who} says {wanted[0]}×{wanted[1]}",
                "a wrong patch size for these weights",
                f"build the model with patch_size={has[0] if has[0] == has[1] else has}, or name its own architecture",
                file=has[0],
                claimed=wanted[0],
            )
    return None


def _tokens(state: State, claims: list[Claim]) -> Finding | None:
    """Class, distillation and register tokens: what is claimed, what is there, and what the table has rows for."""
    cause = "a token was left out when the weights were written, or the model is built without one that they have"
    for claim in claims:
        for token in [token for token in TOKENS if token in claim.facts]:
            wanted = int(claim.facts[token])
            has = int(state[token].shape[1]) if token in state else 0
            if wanted != has:
                there = f"has {has}" if has else "has none"
                value = has if token == "registers" else True
                return claim.finding(
                    "token_left_out",
                    f"{claim.who} says {wanted} {TOKENS[token]}, the file {there}",
                    cause,
                    f"take {token} from the original checkpoint"
                    if wanted > has
                    else f"build the model with {token}={value}",
                    file=has,
                    claimed=wanted,
                )
    return _rows(state, claims, cause)


def _rows(state: State, claims: list[Claim], cause: str) -> Finding | None:
    """A learned table has a row for each patch, and perhaps for each token in front."""
    table = state.get("position.table")
    if table is None or table.ndim != 3:
        return None
    rows, tokens = int(table.shape[1]), len([name for name in ("class_token", "distillation_token") if name in state])
    registers = int(state["registers"].shape[1]) if "registers" in state else 0
    claimed = next((c for c in claims if isinstance(c.settings, ViTSettings) and c.sure), None)
    if claimed is not None and HEADER_SAYS in claimed.who:
        h, w = claimed.settings.grid  # type: ignore[union-attr]
        counts = [h * w]
    else:  # a bare file may be for any size, which most often is a square
        counts = [math.isqrt(max(rows - extra, 0)) ** 2 for extra in (0, tokens, tokens + registers)]
    if any(rows - count in (0, tokens, tokens + registers) for count in counts):
        return None
    left = min((rows - count - tokens for count in counts), key=abs)
    if abs(left) <= 2:
        return fault(
            "token_left_out",
            f"the table of positions has {rows} rows, the patches and tokens in the file are {rows - left}",
            cause,
            "take the missing token, and its row, from the original checkpoint",
            rows=rows,
            expected=rows - left,
        )
    if claimed is None:
        return None
    h, w = claimed.settings.grid  # type: ignore[union-attr]
    return fault(
        "position_rows",
        f"the table of positions has {rows} rows, {claimed.who} means {h * w + tokens} ({h}×{w} patches)",
        "the table was made for another image or patch size",
        "load the weights with load_weights, which resizes the table, or say the image_size that it was made for",
        rows=rows,
        expected=h * w + tokens,
    )


def _complete(state: State, claims: list[Claim]) -> Finding | None:
    for claim in [claim for claim in claims if claim.settings is not None]:
        wanted = without_memory(claim.settings).state_dict()  # type: ignore[arg-type]
        if missing := [name for name in wanted if name not in state and not _optional(name)]:
            return _half(missing, len(wanted), claim.who, claim.finding)
    # Without anybody's word: every block has what the others have, and none is skipped.
    pattern = re.compile(r"^(encoder\.blocks|decoder_blocks|blocks|stages\.\d+)\.(\d+)\.(.+)$")
    parts: dict[str, dict[int, set[str]]] = {}
    for name in state:
        if match := pattern.match(name):
            parts.setdefault(match[1], {}).setdefault(int(match[2]), set()).add(match[3])
    gaps = [
        f"{stack}.{i}.{part}"
        for stack, members in parts.items()
        for i in range(max(members) + 1)
        for part in sorted(set.union(*members.values()) - members.get(i, set()))
    ]
    return _half(gaps, len(state) + len(gaps), "its own numbering", fault) if gaps else None


def _optional(name: str) -> bool:
    """A file of features has no head; positions and the last norm are known by other names too; and so on."""
    return name.startswith(("head", "norm.", "norm_pool.", "position.", "pool_attention.", "patch.bias"))


def _half(missing: list[str], total: int, who: str, finding: Callable[..., Finding]) -> Finding:
    numbers = sorted({int(m[1]) for name in missing if (m := re.search(r"blocks\.(\d+)\.", name))})
    where = f" ({blocks(numbers)})" if numbers else ""
    return finding(
        "half_loaded",
        f"{len(missing)} of {total} tensors that {who} asks for are missing{where}: {group_names(missing, most=3)}",
        "a checkpoint that was cut off, or written for a part of the model only",
        "copy or download the file again, or load the part into the model that it was written for",
        missing=len(missing),
        expected=total,
    )


def _almost(raw: RawFile, state: State, family: str | None) -> list[Finding]:
    """A bare file that is an entry of the catalog in all but one respect, and is no other, or one of another name."""
    if HEADER in raw.metadata or family is None:
        return []
    try:
        known = infer(state, family, raw.state)
    except VitrailError:
        return []
    names = _words(raw.names)
    exact, close = [-1], []
    for entry in [entry for entry in catalog().values() if type(entry.settings) is FAMILIES[family]]:
        apart, alike = differences(entry.settings, known), len(_words([entry.name, *entry.aliases]) & names)
        if not apart:
            exact.append(alike)
        elif len(apart) == 1 and apart[0].startswith(TELLING):
            close.append((alike, entry.name, apart[0]))
    alike, name, apart_in = max(close, key=lambda one: one[0], default=(-1, "", ""))
    if alike <= max(exact):
        return []
    make: Any = fault if alike > 0 and max(exact) < 0 else warn
    fix = "take the original checkpoint, or name the architecture that it is (--architecture)"
    if make is warn:  # a model of one's own may differ from all others in just this
        fix = f"nothing, if it is meant to be so; else take the original checkpoint (--architecture {name} makes sure)"
    if apart_in.startswith("depth"):
        cause, code = "blocks are missing at its end", "half_loaded"
    elif apart_in.startswith("patch"):
        cause, code = "a wrong patch size", "patch_size"
    else:
        cause, code = "a token was left out when the weights were written", "token_left_out"
    return [make(code, f"the file is {name} but for its {apart_in}", cause, fix)]


def _words(names: Iterable[str]) -> set[str]:
    return {word for name in names for word in re.split(r"[^a-z]+", name.lower()) if len(word) > 2}
