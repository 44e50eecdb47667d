"""The second time: what validation has chosen is done once more on all images, those held out included.

The figures of a run are of the first time, its weights of the second.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from vitrail.models import build
from vitrail.training.checkpoint import load_state
from vitrail.training.interpolation import between, copies
from vitrail.training.run_record import read_record

if TYPE_CHECKING:
    from vitrail.training.job import Job

AGAIN = "again"  # in the run folder, until the run is finished


def learn_from_all(job: "Job", share: float) -> int:
    """Leaves the weights in the job's model, at this share of the way from what it starts from. Gives the number of
    images. A second time that was killed goes on where it was."""
    samples = {"train": [*job.samples["train"], *job.samples["val"]], "val": []}
    readable = len(samples["train"]) - len(job.unreadable())
    job.views.clear()  # the pictures, before they are read again
    folder = job.folder / AGAIN
    state = load_state(folder / "last.pt")
    start = replace(job.start, model=build(job.model.settings))  # type: ignore[arg-type]
    start.model.preprocessing = job.pre  # type: ignore[assignment]
    start.model.load_state_dict(job.first)
    recipe = replace(job.recipe, tune=job.recipe.tune if share else "probe")
    twin = type(job)(
        job.data, job.source, samples, start, job.given, recipe, job.why, job.dtype, folder, job.group, job.view,
        (read_record(folder), state) if state else None, again=True, teacher=job.teacher,
        begins_small=job.begins_small and bool(share),
    )  # fmt: skip
    job.view.line(f"Once more, on all {readable:,} images:")
    twin.fit()
    tuned = copies(twin.model)
    job.model.load_state_dict(between(twin.first, tuned, share) if twin.epochs else tuned)
    return readable
