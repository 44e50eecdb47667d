"""How much data does a ViT need, beside a ResNet, and what does pre-training on the same pictures save?

    python recipes/data_amount.py --data cifar10.npz --jobs 3

Each model sees as many images with their labels, but no image more than 400 times. The masked autoencoder is
pre-trained on the same few images, without their labels, and nothing else; it sees twice as many, so that the ViT after
it has seen three times the images of the others. The record has `images_seen` for each run.
"""

from study import Study, Variant, main

AMOUNTS = (500, 2_000, 10_000, 50_000)
SEEN = 1_500_000
HELD_OUT = {"val": 0.1}  # of all alike; left open, it would be more after pre-training than from scratch


def options(count: int, optimizer: str = "adamw") -> dict:
    batch = min(512, count // 4)
    return {"epochs": min(400, SEEN // count), "batch_size": batch, "optimizer": optimizer, "lr": 1e-3} | HELD_OUT


def variants() -> list[Variant]:
    found = []
    for count in AMOUNTS:
        few = {"images": count, "x": count}
        mae = {"epochs": min(800, 2 * SEEN // count), "batch_size": min(512, count // 4)} | HELD_OUT
        found += [
            Variant(f"vit-{count}", options=options(count), line="ViT", **few),
            Variant(f"vit-muon-{count}", options=options(count, "muon"), line="ViT, Muon", **few),
            Variant(f"resnet-{count}", "tv:resnet18", options=options(count), line="ResNet-18", **few),
            Variant(f"pretraining-{count}", options=mae, verb="pretrain", means=True, images=count),
            Variant(
                f"mae-{count}",
                options=options(count) | {"weights": f"run:pretraining-{count}", "refit": "off"},
                line="ViT after MAE, three times the images seen",
                **few,
            ),
        ]
    return found


STUDY = Study(
    name="data_amount",
    question="How much data does a ViT need, and how much does MAE save?",
    variants=variants(),
    minutes=10,
    x="training images",
    logarithmic="x",
    notes="CIFAR-10 from scratch, AdamW unless said; no image is seen more than 400 times, by MAE 800 times.",
)

if __name__ == "__main__":
    main(STUDY)
