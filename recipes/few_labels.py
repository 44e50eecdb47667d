"""What is the masked autoencoder inside worth to those who have few labels?

    python recipes/few_labels.py --data tiny_imagenet.npz --jobs 2
    python recipes/few_labels.py --data tiny_imagenet.npz --jobs 2 --only scratch-2000 mae-2000   on a CPU

It has seen Tiny-ImageNet's training images without their labels; both then see the same few with labels, as often. From
scratch also for as long as `vitrail.train` takes by itself where there are so few.
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
        probe = {"refit": "off", "val": 0.1, "tune": "probe"} | INSIDE
        found += [
            Variant(f"scratch-{count}", options=options | {"lr": 1e-3}, line="from scratch", **few),
            Variant(f"mae-{count}", options=options | INSIDE, line="after the MAE inside", **few),
            Variant(f"probe-{count}", options=probe, line="a linear classifier on its frozen features", **few),
        ]
        if count < 20_000:
            long = options | {"lr": 1e-3, "epochs": 200}
            found.append(Variant(f"scratch-{count}, 200 epochs", options=long, line="from scratch, 200 epochs", **few))
    return found


STUDY = Study(
    name="few_labels",
    question="What is the masked autoencoder inside worth to those who have few labels?",
    variants=variants(),
    minutes=15,
    data="tiny_imagenet.npz",
    seeds=(0, 1, 2),
    x="training images with labels",
    logarithmic="x",
    notes="Tiny-ImageNet, Muon, 30 epochs if nothing is said; the autoencoder has seen 98,000 of its images 150 times.",
)

if __name__ == "__main__":
    main(STUDY)
