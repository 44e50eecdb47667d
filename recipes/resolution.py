"""Another resolution than in training: the position table as it is, resized, and resized and fine-tuned.

    python recipes/resolution.py --data cifar10.npz --jobs 3

The pictures are the same, brought to another size; so more pixels bring no more information, and what is lost is the
model's own affair. Fine-tuning is `vitrail.train`'s: it solves for a new head first, and goes as far from it, in five
epochs, as validation says; so the new head alone is shown too.
"""

from study import Study, Variant, main

SIZES = (24, 28, 40, 48, 64)
TUNING = {"batch_size": 512, "optimizer": "adamw", "refit": "off"}


def variants() -> list[Variant]:
    base = {"epochs": 30, "batch_size": 512, "optimizer": "muon", "lr": 1e-3}
    found = [Variant("base", options=base, means=True)]
    for name, measure in (("not resized", "not_resized"), ("resized", "accuracy")):
        for size in sorted((32, *SIZES)):
            look = {"verb": "look", "of": "base", "measure": measure, "options": {"image_size": size}}
            found.append(Variant(f"{name}, {size}", line=name, x=size, **look))
    for size in sorted((32, *SIZES)):  # what tuning starts from: a linear classifier on features at that size
        probe = {"weights": "run:base", "image_size": size, "tune": "probe", "refit": "off"}
        found.append(Variant(f"new head, {size}", options=probe, line="resized, a new head", x=size))
    for size in sorted((32, *SIZES)):  # at 32 too: what five more epochs do by themselves
        tuned = {"weights": "run:base", "image_size": size, "epochs": 5, "lr": 3e-4, **TUNING}
        found.append(Variant(f"fine-tuned, {size}", options=tuned, line="resized, fine-tuned up to 5 epochs", x=size))
    return found


STUDY = Study(
    name="resolution",
    question="What becomes of a ViT at another resolution, and what does fine-tuning mend?",
    variants=variants(),
    minutes=6,
    x="side of the test images, pixels",
    notes="CIFAR-10, trained at 32×32 with learned positions.",
)

if __name__ == "__main__":
    main(STUDY)
