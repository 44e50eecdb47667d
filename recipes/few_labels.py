"""What is the masked autoencoder that ships inside worth to those who have few labels?

    python recipes/few_labels.py --data tiny_imagenet.npz --jobs 2
    python recipes/few_labels.py --data tiny_imagenet.npz --jobs 2 --only scratch-2000 mae-2000   on a CPU

It has seen Tiny-ImageNet's training images without their labels; both then see the same few with labels, as often.
"""

from study import Study, Variant, main
from variants import PLAIN

AMOUNTS = (2_000, 10_000, 50_000)
OPTIONS = {"epochs": 30, "optimizer": "muon", "refit": "off", "val": 0.1}
INSIDE = {"weights": "vitrail_tiny_mae"}


def variants() -> list[Variant]:
    found = []
    for count in AMOUNTS:
        few = {"images": count, "x": count, "model": "vit_mini8", "settings": PLAIN | {"depth": 7}}
        options = OPTIONS | {"batch_size": min(512, count // 32)}
        found += [
            Variant(f"scratch-{count}", options=options | {"lr": 1e-3}, line="from scratch", **few),
            Variant(f"mae-{count}", options=options | INSIDE, line="after the MAE inside", **few),
        ]
    return found


STUDY = Study(
    name="few_labels",
    question="What is a masked autoencoder worth to those who have few labels?",
    variants=variants(),
    minutes=10,
    data="tiny_imagenet.npz",
    seeds=(0, 1, 2),
    x="training images with labels",
    logarithmic="x",
    notes="Tiny-ImageNet, 30 epochs, Muon; the masked autoencoder has seen 98,000 of its images 150 times, unlabelled.",
)

if __name__ == "__main__":
    main(STUDY)
