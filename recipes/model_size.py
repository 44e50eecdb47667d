"""Accuracy against the size of the model, ViT and ResNet, on all of CIFAR-10.

python recipes/model_size.py --data cifar10.npz --jobs 2
"""

from study import Study, Variant, main
from variants import PLAIN

OPTIONS = {
    "epochs": 15, "batch_size": 512, "augment": "medium", "mixup": 0.0, "cutmix": 0.0, "compile": "on",
}  # fmt: skip
VIT = {"96×6": (96, 6, 3), "192×9": (192, 9, 6), "320×9": (320, 9, 10), "448×9": (448, 9, 14)}  # width, depth, heads
RESNET = ("resnet18", "resnet34", "resnet50")

STUDY = Study(
    name="model_size",
    question="What does a larger model bring?",
    variants=[
        Variant(
            f"vit-{name}",
            settings=PLAIN | {"width": width, "depth": depth, "heads": heads},
            options=OPTIONS | {"optimizer": "muon", "lr": 3e-3},
            line="ViT",
            x="parameters",
        )
        for name, (width, depth, heads) in VIT.items()
    ]
    + [
        Variant(name, f"tv:{name}", options=OPTIONS | {"optimizer": "adamw", "lr": 1e-3}, line="ResNet", x="parameters")
        for name in RESNET
    ],
    minutes=12,
    seeds=(0, 1, 2),
    x="parameters, millions",
    logarithmic="x",
    notes="CIFAR-10 from scratch, 15 epochs; ViT with Muon, ResNet with AdamW.",
)

if __name__ == "__main__":
    main(STUDY)
