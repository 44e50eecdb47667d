"""Test images that are shifted, scaled and rotated: what do ViT and ResNet mind, what does augmentation cure?

python recipes/robustness.py --data cifar10.npz --jobs 2
"""

from study import Study, Variant, main

OPTIONS = {"epochs": 20, "batch_size": 512, "optimizer": "adamw", "lr": 1e-3}
PLAIN = {"augment": "none", "mixup": 0.0, "cutmix": 0.0}
MODELS = (
    ("ViT", "vit_mini4", {}), ("ViT, Muon", "vit_mini4", {"optimizer": "muon"}), ("ResNet-18", "tv:resnet18", {}),
)  # fmt: skip

STUDY = Study(
    name="robustness",
    question="What do shifted, scaled and rotated test images cost, with and without augmentation?",
    variants=[
        Variant(f"{name}, {words}", model, options=OPTIONS | optimizer | more, measure="robustness", line=words)
        for name, model, optimizer in MODELS
        for words, more in (("augmented", {"augment": "medium"}), ("not augmented", PLAIN))
    ],
    minutes=4,
    figure="moved",
    axis="accuracy on moved test images, %",
    beside=("top1", "accuracy on the same images where they were, %"),
    notes="CIFAR-10 from scratch, 20 epochs, AdamW unless said; the mean over ten ways to shift, scale and rotate.",
)

if __name__ == "__main__":
    main(STUDY)
