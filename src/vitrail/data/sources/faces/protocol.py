"""Which faces teach, which choose the threshold, and which only measure: people are kept apart.

A model that has seen a person live and as an attack may know the person and not the attack, so no subject is in two
splits unless an official protocol has it so, and then that is said.
"""

import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from vitrail.data.samples import plural, some
from vitrail.data.sources.faces.samples import Face
from vitrail.data.split import drawn
from vitrail.errors import VitrailError, nearest

Splits = dict[str, list[Face]]
DEVELOPMENT = 0.25  # of the training subjects, where the data sets none apart


def arrange(
    splits: Splits, name: str, protocol: str, fold: str | None, leave_out: str | None, val: float | None, seed: int
) -> tuple[Splits, dict[str, Any], list[str]]:
    """train, val and perhaps test; what was done, for the record; and notes."""
    if fold and leave_out:
        raise VitrailError("--fold and --leave-out each say what to test on: use one of them.")
    facts: dict[str, Any] = {"protocol": protocol}
    notes: list[str] = []
    if leave_out:
        splits, facts["leave_out"] = _left_out(splits, leave_out, name, notes), leave_out
    elif fold:
        splits, facts["fold"] = _fold(splits, fold, name), fold
    else:
        splits = {"train" if split == "all" else split: faces for split, faces in splits.items()}
    if not splits.get("train"):
        raise VitrailError(f"{name} has no faces to train on: put some into train/, or leave the splits out.")
    two_kinds(splits["train"], "The training set", "train on both")
    if "val" in splits:
        facts["development"] = "the data's own development set"
    elif val == 0:
        raise VitrailError("--val 0 leaves no development set, and the threshold is chosen there.")
    else:
        rest, part = part_by_subject(splits["train"], DEVELOPMENT if val is None else val, seed)
        splits = splits | {"train": rest, "val": part}
        people = sorted({face.person for face in part} - {""})
        facts["development_subjects"] = people
        facts["development"] = f"subjects held out: {some(people)}" if people else "pictures held out, subjects unknown"
    two_kinds(splits["val"], "The development set", "it has to choose a threshold between them")
    overlap = shared_subjects(splits)
    if overlap and protocol != "official":
        (where, people), more = next(iter(overlap.items())), len(overlap) - 1
        also = f", and {more} more such {'pair' if more == 1 else 'pairs'} of splits" if more else ""
        raise VitrailError(
            f"{where} share {plural(len(people), 'subject')} ({some(people)}){also}: keep people apart, let "
            "--fold 1/3 do it, or use --protocol official to go on and have it recorded."
        )
    for where, people in overlap.items():
        notes.append(f"{where} share {plural(len(people), 'subject')} ({some(people, 20)}): the figures flatter.")
    facts["overlap"] = overlap
    if namesakes := _namesakes(splits):
        notes.append(
            f"{plural(len(namesakes), 'subject')} of the test ({some(namesakes)}) also trained or chose, in another "
            "domain: taken for other people; if they are not, the figures flatter."
        )
    nameless = sum(not face.subject for faces in splits.values() for face in faces)
    if nameless:
        notes.append(
            f"{plural(nameless, 'picture')} without a subject: whether a person is in two splits can't be checked."
        )
    known = {face.attack for face in splits["train"]}
    for split in ("val", "test"):
        if unseen := sorted({face.attack for face in splits.get(split, [])} - known - {""}):
            notes.append(f"{split} has {plural(len(unseen), 'attack type')} that training does not ({some(unseen)}).")
    return splits, facts, notes


def two_kinds(faces: list[Face], what: str, why: str) -> None:
    live = sum(not face.attack for face in faces)
    if not live or live == len(faces):
        kind = "live faces" if live else "attacks"
        raise VitrailError(f"{what} holds {kind} only ({len(faces):,}): {why}, live faces and attacks.")


def shared_subjects(splits: Splits) -> dict[str, list[str]]:
    """ "train and test" → the subjects that both have; of an image without a subject, the image itself."""
    people = {split: {face.person or face.name for face in faces} for split, faces in splits.items()}
    names = [split for split in ("train", "val", "test") if split in people]
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    return {f"{a} and {b}": sorted(people[a] & people[b]) for a, b in pairs if people[a] & people[b]}


def _namesakes(splits: Splits) -> list[str]:
    """Subjects to test on whose name is also in another domain, of those that teach or choose."""
    tested = {face.subject for face in splits.get("test", []) if face.domain and face.subject}
    others = {face.subject for split in ("train", "val") for face in splits[split] if face.domain}
    people = {face.person for split in ("train", "val") for face in splits[split]}
    same = {face.subject for face in splits.get("test", []) if face.person in people}
    return sorted((tested & others) - same)


def part_by_subject(faces: list[Face], fraction: float, seed: int) -> tuple[list[Face], list[Face]]:
    """(rest, part): whole subjects, so many that the part has about this share of live faces and of attacks; the rest
    keeps every attack type. Images without a subject each stand for themselves."""
    groups = _by_subject(faces)
    sizes = {person: _counts(group) for person, group in groups.items()}
    total = np.sum([*sizes.values()], axis=0)
    left: dict[str, int] = defaultdict(int)  # how many subjects of the rest show each type
    for group in groups.values():
        for kind in {face.attack for face in group}:
            left[kind] += 1
    taken: set[str] = set()
    have = np.zeros(2)

    def gain(person: str) -> float:
        """By how much nearer to the wanted shares."""
        off = np.abs(have / total - fraction).sum()
        return off - np.abs((have + sizes[person]) / total - fraction).sum()

    def take(wanted: Callable[[str], bool]) -> None:
        nonlocal have
        for person in sorted(groups, key=lambda person: drawn(seed, person)):
            kinds = {face.attack for face in groups[person]}
            if person not in taken and wanted(person) and all(left[kind] > 1 for kind in kinds):
                taken.add(person)
                have = have + sizes[person]
                for kind in kinds:
                    left[kind] -= 1

    take(lambda person: gain(person) > 1e-12)
    take(lambda person: bool(not have[0] and sizes[person][0]))  # a threshold needs both
    take(lambda person: bool(not have[1] and sizes[person][1]))
    if not have.all():
        people = len(groups)
        raise VitrailError(
            f"Of {plural(people, 'subject')} none can be set apart for development so that both parts have live faces "
            "and attacks: give a development set (dev/), or faces of more people."
        )
    in_part = {id(face) for person in taken for face in groups[person]}
    return [f for f in faces if id(f) not in in_part], [f for f in faces if id(f) in in_part]


def folds(faces: list[Face], count: int) -> list[list[Face]]:
    """All faces in `count` parts of about equal size, live and attacked, no subject in two. The same for every seed, so
    that runs can be compared."""
    groups = _by_subject(faces)
    if len(groups) < count:
        raise VitrailError(f"{plural(len(groups), 'subject')} can't be divided into {count} folds.")
    sizes = {person: _counts(group) for person, group in groups.items()}
    total = np.maximum(np.sum([*sizes.values()], axis=0), 1)
    have = np.zeros((count, 2))
    parts: list[list[Face]] = [[] for _ in range(count)]
    # The largest first, each where it leaves the fullest part least full: of live faces and attacks, the worse counts.
    for person in sorted(groups, key=lambda person: (-(sizes[person] / total).sum(), person)):
        after = (have + sizes[person]) / total
        number = int(np.lexsort((after.sum(axis=1), after.max(axis=1)))[0])
        have[number] += sizes[person]
        parts[number] += groups[person]
    return parts


def _fold(splits: Splits, fold: str, name: str) -> Splits:
    """Fold i of k, counted from 1, is tested on; the others teach."""
    match = re.fullmatch(r"(\d+)\s*/\s*(\d+)", fold)
    number, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= count or count < 2:
        raise VitrailError(f"--fold {fold} is not known: write 1/3, 2/3 or 3/3, the fold to test on and their number.")
    everyone = [face for faces in splits.values() for face in faces]
    if not all(face.subject for face in everyone):
        raise VitrailError(f"--fold divides by subject, and some pictures of {name} have none: add a subject column.")
    parts = folds(everyone, count)
    two_kinds(parts[number - 1], f"Fold {fold}", "use fewer folds, so that each has both")
    rest = [face for place, part in enumerate(parts) if place != number - 1 for face in part]
    return {"train": rest, "test": parts[number - 1]}


def _left_out(splits: Splits, domain: str, name: str, notes: list[str]) -> Splits:
    """All of the domain to test on; of the others what teaches and what chooses."""
    domains = sorted({face.domain for faces in splits.values() for face in faces} - {""})
    if domain not in domains:
        known = f"it has {some(domains)}" if domains else "it names none (a folder for each, or a column domain)"
        raise VitrailError(f"{name} has no domain {domain!r}; {known}.{nearest(domain, domains)}")
    if len(domains) < 2:
        raise VitrailError(f"{name} has the domain {domain} alone: with it left out, nothing is left to train on.")
    test = [face for faces in splits.values() for face in faces if face.domain == domain]
    rest = {split: [face for face in faces if face.domain != domain] for split, faces in splits.items()}
    if rest.get("test"):
        notes.append(f"{plural(len(rest['test']), 'test picture')} of the other domains are not used.")
    kept = {"train": rest.get("train", []) + rest.get("all", []), "val": rest.get("val", [])}
    return {split: faces for split, faces in (kept | {"test": test}).items() if faces}


def _by_subject(faces: list[Face]) -> dict[str, list[Face]]:
    groups: dict[str, list[Face]] = defaultdict(list)
    for face in faces:
        groups[face.person or face.name].append(face)
    return groups


def _counts(faces: list[Face]) -> np.ndarray:
    """[live, attacks]"""
    live = sum(not face.attack for face in faces)
    return np.array([live, len(faces) - live], dtype=float)
