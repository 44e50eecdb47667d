"""All checks in order, each of which may fail without stopping the others."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitrail.data.samples import plural
from vitrail.doctor.attention import attention
from vitrail.doctor.findings import FAULT, WARN, Finding, fault, skipped, warn
from vitrail.doctor.history import history
from vitrail.doctor.inputs import preprocessing
from vitrail.doctor.labels import labels
from vitrail.doctor.learning import learning
from vitrail.doctor.page import page
from vitrail.doctor.patient import Patient, Subject, admit
from vitrail.doctor.positions import positions
from vitrail.doctor.signals import signals
from vitrail.doctor.structure import moved, patches, weights
from vitrail.explain.explanation import write
from vitrail.explain.looking import at_rest
from vitrail.predict import Predictor

CHECKS: dict[str, Callable[[Patient], Iterator[Finding]]] = {
    "patches": patches,
    "weights": weights,
    "frozen": moved,
    "positions": positions,
    "attention": attention,
    "activations": signals,  # and gradients, of the same pass
    "preprocessing": preprocessing,
    "learning": learning,
    "history": history,
    "labels": labels,
}


@dataclass
class Diagnosis:
    name: str
    pictures: str  # what it was examined with; nothing, where there was no model
    findings: list[Finding]
    charts: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def faults(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == FAULT]

    @property
    def warnings(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == WARN]

    @property
    def healthy(self) -> bool:
        """Neither fault nor warning."""
        return not self.faults and not self.warnings

    @property
    def verdict(self) -> str:
        """How many faults and warnings, and what was looked at: the last line of the command, the first of the page."""
        counts = [(len(self.faults), "fault"), (len(self.warnings), "warning")]
        said = ", ".join(plural(count, word) for count, word in counts if count) or "Nothing wrong was found"
        return f"{said}." + (f" Examined with {self.pictures}." if self.pictures else "")

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "model": self.name,
            "pictures": self.pictures,
            "faults": len(self.faults),
            "warnings": len(self.warnings),
            "findings": [finding.as_dict() for finding in self.findings],
        }

    def save(self, folder: str | Path) -> Path:
        """doctor.html, complete in itself."""
        return write(Path(folder) / "doctor.html", self.html())

    def html(self) -> str:
        """The page as text."""
        return page(self.name, self.verdict, self.findings, self.charts)

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings))


def diagnose(
    subject: Subject,
    data: Any = None,
    image_size: int | None = None,
    images: int = 64,
    lr: float | None = None,
    architecture: str | None = None,
    device: str | None = None,
    show: Callable[[Finding], None] | None = None,
) -> Diagnosis:
    """Examines a run folder, a checkpoint, a predictor or a model; `show` is called with each finding as it comes.

    `data` is what `vitrail train` takes, a folder of images, a batch [B, C, H, W] exactly as the model would be given
    it, or (batch, labels). Without any, made-up images serve for what needs no real ones. `lr` is a learning rate to
    try; of a run, its own by default.

    >>> found = diagnose(model, (x, y))
    >>> [finding.code for finding in found.faults]
    []
    """
    found: list[Finding] = []

    def add(name: str, findings: list[Finding]) -> None:
        for finding in findings:
            found.append(replace(finding, check=finding.check or name))
            if show is not None:
                show(found[-1])

    whose = subject.model if isinstance(subject, Predictor) else subject
    with at_rest(whose) if isinstance(whose, nn.Module) else nullcontext(), torch.inference_mode(False):
        patient, first = admit(subject, data, image_size, images, architecture, device, lr)
        add("file", first)
        if patient is None:
            add("the rest", [skipped("there is no model to examine until the file is mended")])
            return Diagnosis(str(subject), "", found)
        for name, check in CHECKS.items():
            patient.faulty = any(finding.severity == FAULT for finding in found)
            add(name, _guarded(check, patient))
    return Diagnosis(patient.name, patient.batch.about, found, patient.charts)


def _guarded(check: Callable[[Patient], Iterator[Finding]], patient: Patient) -> list[Finding]:
    """A model with one fault often fails in other places, which is no news; too little memory is no fault of it."""
    findings: list[Finding] = []
    try:
        findings += check(patient)
    except Exception as error:
        kind = type(error).__name__
        reason = f"{kind}: {str(error).splitlines()[0]}" if str(error) else kind
        if _out_of_memory(error):
            findings.append(
                warn(
                    "out_of_memory",
                    f"out of memory ({reason})",
                    f"{plural(len(patient.batch.x), 'picture')} of {'×'.join(map(str, patient.batch.x.shape[2:]))} are"
                    " more than this device holds",
                    "examine with fewer --images, a smaller --image-size, or --device cpu",
                )
            )
        elif patient.faulty:
            findings.append(skipped(f"it can't be examined before the faults above are mended ({reason})"))
        else:
            findings.append(
                fault(
                    "failed",
                    f"the model fails with {reason}",
                    "parts that do not fit together",
                    "look at its settings and shapes; does it run on one picture?",
                )
            )
    return findings


def _out_of_memory(error: Exception) -> bool:
    """A GPU has a kind of its own for it; torch on a CPU says it in words."""
    said = str(error).lower()
    words = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(word in said for word in words)
    )
