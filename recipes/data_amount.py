"""How much data does a ViT need, beside a ResNet, and what does pre-training on the same pictures save?

    python recipes/data_amount.py --data cifar10.npz --jobs 3

Each model sees as many images with their labels, but no image more than 400 times. The masked autoencoder is
pre-trained on the same few images, without their labels, and nothing else; it sees twice as many, so that the ViT after
it has seen three times the images of the others. The record has `images_seen` for each run. A ViT learns with Muon, a
ResNet, whose convolutions Muon does not take, with AdamW: either with what `vitrail.train` would take.
"""

from study import Study, Variant, main
from variants import PLAIN

AMOUNTS = (500, 2_000, 10_000, 50_000)
SEEN = 1_000_000
HELD_OUT = {"val": 0.1}  # of all alike; left open, it would be more after pre-training than from scratch


def options(count: int, optimizer: str = "muon") -> dict:
    batch = min(512, count // 4)
    epochs = min(400, SEEN // count)
    return {"epochs": epochs, "batch_size": batch, "optimizer": optimizer, "lr": 1e-3, "compile": "on"} | HELD_OUT


def variants() -> list[Variant]:
    found = []
    for count in AMOUNTS:
        few = {"images": count, "x": count}
        vit = few | {"settings": PLAIN}
        mae = {"epochs": min(800, 2 * SEEN // count), "batch_size": min(512, count // 4), "compile": "on"} | HELD_OUT
        found += [
            Variant(f"vit-{count}", options=options(count), line="ViT", **vit),
            Variant(f"resnet-{count}", "tv:resnet18", options=options(count, "adamw"), line="ResNet-18", **few),
            Variant(f"pretraining-{count}", options=mae, verb="pretrain", means=True, images=count, settings=PLAIN),
            Variant(
                f"mae-{count}",
                options=options(count) | {"weights": f"run:pretraining-{count}", "refit": "off"},
                line="ViT after MAE, three times the images seen",
                **vit,
            ),
        ]
    return found


STUDY = Study(
    name="data_amount",
    question="How much data does a ViT need, and how much does MAE save?",
    variants=variants(),
    minutes=60,
    seeds=(0, 1, 2),
    x="training images",
    logarithmic="x",
    notes="CIFAR-10 from scratch; ViT with Muon, ResNet with AdamW; no image is seen more than 400 times (MAE: 800).",
)

if __name__ == "__main__":
    main(STUDY)
