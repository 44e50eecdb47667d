"""A convolutional stem, or conditional positions by convolution (CPVT), against the plain ViT.

python recipes/stems.py --data cifar10.npz --jobs 3
"""

from study import Study, Variant, main

OPTIONS = {"epochs": 30, "batch_size": 512, "optimizer": "muon", "lr": 1e-3, "compile": "on"}
STEMS = {"plain": {}, "CPVT": {"position": "conditional"}, "hybrid": {"stem": "conv2", "patch_size": 2}}

STUDY = Study(
    name="stems",
    question="What do a few convolutions give to a ViT that has little data?",
    variants=[Variant(name, settings=settings, options=OPTIONS, line="ViT") for name, settings in STEMS.items()],
    minutes=4,
    seeds=(0, 1, 2),
    notes="CIFAR-10 from scratch, 30 epochs, Muon; the same grid of 8×8 tokens.",
)

if __name__ == "__main__":
    main(STUDY)
