"""A hybrid as teacher, with convolutions in it: its hard answers, its soft ones, and none.

python recipes/distillation.py --data tiny_imagenet.npz --jobs 2
"""

from study import Study, Variant, main

OPTIONS = {"epochs": 30, "batch_size": 512, "optimizer": "muon", "lr": 1e-3, "compile": "on"}
TAUGHT = {"teacher": "run:teacher"}
PUPIL = {"model": "vit_mini8", "settings": {"depth": 7, "heads": 6}}
# The best for its size that we know, 5.6 M parameters, and what ships inside, from an earlier recipe.
TEACHER = {"model": "hybrid_mini8"}
LONG = {
    "epochs": 120, "batch_size": 1024, "optimizer": "muon", "lr": 4e-3, "weight_decay": 0.3, "drop_path": 0.15,
    "augment": "strong", "calm": 15, "compile": "on",
}  # fmt: skip

STUDY = Study(
    name="distillation",
    question="What does a ViT learn from a better model that the labels do not tell it?",
    variants=[
        Variant("teacher", options=LONG, line="the teacher, a hybrid", once=True, **TEACHER),
        Variant("none", options=OPTIONS, line="ViT", **PUPIL),
        # What the token and its head bring by themselves, for those with a teacher have them too.
        Variant(
            "none, but a token",
            options=OPTIONS,
            line="ViT",
            model=PUPIL["model"],
            settings=PUPIL["settings"] | {"distillation_token": True},
        ),
        Variant("hard", options=OPTIONS | TAUGHT | {"distill": "hard"}, line="ViT", **PUPIL),
        Variant("soft", options=OPTIONS | TAUGHT | {"distill": "soft"}, line="ViT", **PUPIL),
    ],
    minutes=20,
    data="tiny_imagenet.npz",
    seeds=(0, 1, 2),
    notes="Tiny-ImageNet from scratch: the teacher, once, 120 epochs, its pupils 30.",
)

if __name__ == "__main__":
    main(STUDY)
