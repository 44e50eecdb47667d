"""What does a ViT lose without positions, and which kind serves it best?

python recipes/positions.py --data cifar10.npz --jobs 3
"""

from study import Study, Variant, main
from variants import PLAIN

KINDS = ("none", "learned", "sincos", "factorised", "relative", "rotary", "conditional")
OPTIONS = {
    "epochs": 20, "batch_size": 512, "optimizer": "muon", "lr": 3e-3, "augment": "medium", "mixup": 0.0, "cutmix": 0.0,
    "compile": "on",
}  # fmt: skip

STUDY = Study(
    name="positions",
    question="What is a ViT without positions, and which kind serves it best?",
    variants=[Variant(kind, settings=PLAIN | {"position": kind}, options=OPTIONS, line="ViT") for kind in KINDS],
    minutes=12,
    seeds=(0, 1, 2),
    notes="CIFAR-10 from scratch, 20 epochs, Muon, patches of 4. Beside sincos they begin larger; all else is equal.",
)

if __name__ == "__main__":
    main(STUDY)
