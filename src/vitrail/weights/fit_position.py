"""The positions of a checkpoint as those of a model: resized, exchanged between kinds that are a table, or left out."""

from dataclasses import replace

import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.models import ViTSettings
from vitrail.models.grid import Grid, resize_grid
from vitrail.models.position import KINDS
from vitrail.models.position_kind import Position
from vitrail.weights.fitted import Fitted


def fit_position(fitted: Fitted, source: ViTSettings, target: ViTSettings, stated: set[str]) -> None:
    """In place: resized to the model's grid, made of another kind, or left out."""
    old, new = KINDS[source.position], KINDS[target.position]
    if _fixed(old) and new.tabular and new.learned:  # fixed positions are a table to start from
        if "position.table" not in fitted.state:
            fitted.state["position.table"] = old.formula(source.width, source.grid).flatten(0, 1)[None]
        source, old = replace(source, position=target.position), new
    if _fixed(new) and old.tabular:
        _fit_waves(fitted, source, target)
    elif old is not new:
        if old.acts != "nowhere":
            _note_left_out(fitted, source, target)
        elif new.learned or "position_rule" in stated:  # fixed ones leave no trace in a bare state dict
            fitted.notes.append(f"positions are {target.position} and new: the file has none")
        fitted.drop("position.")
        fitted.fresh += ("position.",)
    elif new.tabular:
        _fit_table(fitted, source, target)
    elif source.grid != target.grid:
        stored = {name: each for name, each in fitted.state.items() if name.startswith("position.")}
        inner = {name.removeprefix("position."): each for name, each in stored.items()}
        inner = new.resize(inner, source.grid, target.grid, source.position_rule)
        fitted.state |= {f"position.{name}": each for name, each in inner.items()}
    if old is new and new.learned and new.resized and source.grid != target.grid:
        grids = f"from {grid_words(source.grid)} to {grid_words(target.grid)}"
        fitted.notes.append(f"positions resized {grids} by the rule {source.position_rule!r}")


def _fixed(kind: type[Position]) -> bool:
    """Is it a table that is made by a formula?"""
    return kind.tabular and not kind.learned


def _note_left_out(fitted: Fitted, source: ViTSettings, target: ViTSettings) -> None:
    fitted.notes.append(f"positions are {target.position}; those of the file, {source.position}, were left out")


def grid_words(grid: Grid) -> str:
    return f"{grid[0]}×{grid[1]}"


def _split_table(fitted: Fitted, source: ViTSettings) -> tuple[dict[str, Tensor], Tensor]:
    """A table's rows for the tokens in front, by name of the token, and those of the patches [h·w, D]."""
    table = fitted.state["position.table"][0]
    count = source.grid[0] * source.grid[1]
    tokens = [name for name in ("class_token", "distillation_token") if name in fitted.state]
    sizes = {name: 1 for name in tokens} | ({"registers": source.registers} if source.registers else {})
    if len(table) not in (count, count + len(tokens), count + sum(sizes.values())):
        raise VitrailError(
            f"{fitted.path}: a table of {len(table)} positions is not one of {grid_words(source.grid)} patches;"
            " say image_size=(height, width) of the images it was made for."
        )
    rows: dict[str, Tensor] = {}
    start = 0
    for name, size in sizes.items():
        if start < len(table) - count:
            rows[name] = table[start : start + size]
            start += size
    return rows, table[len(table) - count :]


def _fit_table(fitted: Fitted, source: ViTSettings, target: ViTSettings) -> None:
    """The table's patches are resized; its rows for tokens in front are kept, or folded into the tokens themselves."""
    rows, patches = _split_table(fitted, source)
    if source.grid != target.grid:
        resized = resize_grid(patches.float().unflatten(0, source.grid), target.grid, source.position_rule)
        patches = resized.flatten(0, 1)
    tokens = [name for name in ("class_token", "distillation_token") if getattr(target, name)]
    kept = tokens if target.position_prefix else []
    _fold(fitted, {name: row for name, row in rows.items() if name not in kept})
    front = [rows.get(name, patches.new_zeros(1, patches.shape[1])) for name in kept]
    fitted.state["position.table"] = torch.cat([*front, patches])[None]


def _fold(fitted: Fitted, rows: dict[str, Tensor]) -> None:
    """A row that is added to a token on every call may as well be part of the token."""
    for name, row in rows.items():
        fitted.state[name] = fitted.state[name] + row


def _fit_waves(fitted: Fitted, source: ViTSettings, target: ViTSettings) -> None:
    """Files of fixed positions store their table, with rows of zeros in front; the model makes it by its formula."""
    stored = KINDS[source.position]
    if _fixed(stored) and source.position != target.position:
        _note_left_out(fitted, source, target)
    if "position.table" not in fitted.state:
        return
    rows, patches = _split_table(fitted, source)
    if _fixed(stored):
        check_waves(patches, stored, source.width, source.grid, fitted.path)
    elif not _are_waves(patches, KINDS[target.position], source.width, source.grid):
        _note_left_out(fitted, source, target)
    _fold(fitted, rows)
    del fitted.state["position.table"]


def _are_waves(table: Tensor, kind: type[Position], width: int, grid: Grid) -> bool:
    waves = kind.formula(width, grid).flatten(0, 1)
    return torch.allclose(table[len(table) - len(waves) :].float(), waves, atol=1e-4)


def check_waves(table: Tensor, kind: type[Position], width: int, grid: Grid, path: str) -> None:
    """Refuses a stored table that is not the one that the formula makes."""
    if not _are_waves(table, kind, width, grid):
        raise VitrailError(
            f'{path}: its positions are not the sine-cosine table; build the model with position="learned".'
        )
