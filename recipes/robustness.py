"""Test images that are shifted, scaled and rotated: what do ViT and ResNet mind, what does augmentation cure?

python recipes/robustness.py --data cifar10.npz --jobs 2
"""

from study import Study, Variant, main
from variants import PLAIN

OPTIONS = {"epochs": 20, "batch_size": 512, "lr": 1e-3, "compile": "on"}
UNCHANGED = {"augment": "none", "mixup": 0.0, "cutmix": 0.0}
MODELS = (("ViT", "vit_mini4", PLAIN, "muon"), ("ResNet-18", "tv:resnet18", {}, "adamw"))

STUDY = Study(
    name="robustness",
    question="What do shifted, scaled and rotated test images cost, with and without augmentation?",
    variants=[
        Variant(
            f"{name}, {words}",
            model,
            settings,
            OPTIONS | {"optimizer": optimizer} | more,
            measure="robustness",
            line=words,
        )
        for name, model, settings, optimizer in MODELS
        for words, more in (("augmented", {"augment": "medium"}), ("not augmented", UNCHANGED))
    ],
    minutes=6,
    seeds=(0, 1, 2),
    figure="moved",
    axis="accuracy on moved test images, %",
    beside=("top1", "accuracy on the same images where they were, %"),
    notes="CIFAR-10 from scratch, 20 epochs; ViT with Muon, ResNet with AdamW; the mean of ten moves.",
)

if __name__ == "__main__":
    main(STUDY)
