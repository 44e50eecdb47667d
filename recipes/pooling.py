"""Class token, mean of the patches, or attention pooling.

python recipes/pooling.py --data cifar10.npz --jobs 3
"""

from study import Study, Variant, main

OPTIONS = {"epochs": 30, "batch_size": 512, "optimizer": "muon", "lr": 1e-3, "compile": "on"}
POOLS = {
    "class token": {},
    "mean": {"pool": "mean", "class_token": False},
    "attention": {"pool": "attention", "class_token": False},
}

STUDY = Study(
    name="pooling",
    question="How should the patches become one vector?",
    variants=[Variant(name, settings=settings, options=OPTIONS, line="ViT") for name, settings in POOLS.items()],
    minutes=4,
    seeds=(0, 1, 2),
    notes="CIFAR-10 from scratch, 30 epochs, Muon.",
)

if __name__ == "__main__":
    main(STUDY)
