"""What a source of faces says of its people: who is in which split, live and attacked, and who is in two of them."""

import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace

from vitrail.data.inspect.labels import Labelled
from vitrail.data.samples import Sample, plural, some
from vitrail.data.sources.faces import open_faces
from vitrail.data.sources.faces.protocol import shared_subjects
from vitrail.data.sources.faces.samples import LIVE, Face, Faces

SHARED = "subjects in more than one split, so that a score would flatter"
NAMELESS = "pictures without a subject, of which nobody can say whether their person is in two splits"


@dataclass
class People(Labelled):
    people: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)  # split → subject → class → images

    @property
    def flawed(self) -> bool:
        return SHARED in self.problems


def faces_as_they_are(data: str) -> Faces:
    """In the data's own splits; the attack types of all of them are classes, not those of training alone."""
    source = open_faces(data, training=False)
    faces = _faces(source)
    classes = [LIVE, *sorted({face.attack for each in faces.values() for face in each} - {""})]
    index = {"" if name == LIVE else name: (number,) for number, name in enumerate(classes)}
    splits: dict[str, list[Sample]] = {
        split: [replace(face, labels=index[face.attack]) for face in each] for split, each in faces.items()
    }
    return replace(source, classes=classes, splits=splits)


def labelled_faces(source: Faces) -> People:
    splits = _faces(source)
    people: dict[str, dict[str, dict[str, int]]] = {}
    for split, faces in splits.items():
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for face in faces:
            if face.person:
                counts[face.person][face.attack or LIVE] += 1
        people[split] = {person: dict(counts[person]) for person in sorted(counts)}
    amounts = {
        split: [sum(name in kinds for kinds in them.values()) for name in source.classes]
        for split, them in people.items()
    }
    each = [sum(kinds.values()) for them in people.values() for kinds in them.values()]
    facts = {}
    if each:
        many = ", ".join(
            f"{len(them):,}" + (f" in {split}" if split != "all" else "") for split, them in people.items()
        )
        facts["subjects"] = (
            f"{many}; {min(each):,} to {max(each):,} pictures of each, median {statistics.median(each):g}"
        )
    if domains := sorted({face.domain for faces in splits.values() for face in faces} - {""}):
        facts["domains"] = ", ".join(domains)
    known = {face.attack for face in splits.get("train", [])}
    for split in ("val", "test"):
        if known and (unseen := sorted({face.attack for face in splits.get(split, [])} - known - {""})):
            facts["unseen"] = f"{split} has {plural(len(unseen), 'attack type')} that train does not ({some(unseen)})"
    problems = {}
    named = {split: [face for face in faces if face.person] for split, faces in splits.items()}
    if shared := shared_subjects(named):
        problems[SHARED] = [f"{person} ({where})" for where, persons in shared.items() for person in persons]
    if nameless := [face.name for faces in splits.values() for face in faces if not face.person]:
        problems[NAMELESS] = nameless
    return People("subjects", amounts, facts, problems, people)


def _faces(source: Faces) -> dict[str, list[Face]]:
    return {split: [each for each in faces if isinstance(each, Face)] for split, faces in source.splits.items()}
