"""Muon for the matrices in the blocks against AdamW for all, at several learning rates.

python recipes/optimizers.py --data cifar10.npz --jobs 3
"""

from study import Study, Variant, main
from variants import PLAIN

OPTIONS = {"epochs": 20, "batch_size": 512, "compile": "on"}
RATES = {"adamw": (5e-4, 1e-3, 2e-3, 4e-3), "muon": (1e-3, 2e-3, 4e-3, 8e-3)}

STUDY = Study(
    name="optimizers",
    question="Does a ViT learn more from the same images with Muon?",
    variants=[
        Variant(
            f"{kind}, {rate:g}", options=OPTIONS | {"optimizer": kind, "lr": rate}, line=kind, x=rate, settings=PLAIN
        )
        for kind, rates in RATES.items()
        for rate in rates
    ],
    minutes=6,
    x="learning rate",
    logarithmic="x",
    notes="CIFAR-10 from scratch, 20 epochs.",
)

if __name__ == "__main__":
    main(STUDY)
