"""(d) A ResNet as teacher: its hard answers, its soft ones, and none.

python recipes/distillation.py --data tiny_imagenet.npz --jobs 2
"""

from study import Study, Variant, main

OPTIONS = {"epochs": 50, "batch_size": 512, "lr": 1e-3}
TAUGHT = OPTIONS | {"teacher": "run:teacher"}
MODEL = "vit_mini8"

STUDY = Study(
    name="distillation",
    question="What does a ViT learn from a ResNet that the labels do not tell it?",
    variants=[
        Variant("teacher", "tv:resnet18", options=OPTIONS, line="ResNet-18, the teacher"),
        Variant("none", MODEL, options=OPTIONS, line="ViT"),
        Variant("hard", MODEL, options=TAUGHT | {"distill": "hard"}, line="ViT"),
        Variant("soft", MODEL, options=TAUGHT | {"distill": "soft"}, line="ViT"),
        # DeiT gives the soft answers a tenth of the loss; small models bear more.
        Variant("soft, half", MODEL, options=TAUGHT | {"distill": "soft", "alpha": 0.5}, line="ViT"),
    ],
    minutes=18,
    data="tiny_imagenet.npz",
    seeds=(0, 1, 2),
    notes="Tiny-ImageNet from scratch, 50 epochs each.",
)

if __name__ == "__main__":
    main(STUDY)
