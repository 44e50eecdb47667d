"""(a) What does a ViT lose without positions, and which kind serves it best?

python recipes/positions.py --data cifar10.npz --jobs 3
"""

from study import Study, Variant, main

KINDS = ("none", "learned", "sincos", "factorised", "relative", "rotary", "conditional")
OPTIONS = {"epochs": 60, "batch_size": 512, "lr": 2e-3}

STUDY = Study(
    name="positions",
    question="What is a ViT without positions, and which kind serves it best?",
    variants=[Variant(kind, settings={"position": kind}, options=OPTIONS, line="ViT") for kind in KINDS],
    minutes=18,
    seeds=(0, 1, 2),
    notes="CIFAR-10 from scratch, 60 epochs, patches of 4; all else is equal.",
)

if __name__ == "__main__":
    main(STUDY)
