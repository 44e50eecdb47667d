"""A hybrid as teacher, with convolutions in it: its hard answers, its soft ones, and none.

python recipes/distillation.py --data tiny_imagenet.npz --jobs 2
"""

from study import Study, Variant, main

OPTIONS = {"epochs": 30, "batch_size": 512, "optimizer": "adamw", "lr": 1e-3}
MUON = OPTIONS | {"optimizer": "muon"}
TAUGHT = {"teacher": "run:teacher"}
PLAIN = {"model": "vit_mini8", "settings": {"depth": 7, "heads": 6}}
# The best for its size that we know, 5.6 M parameters: it is also what ships inside.
TEACHER = {"model": "hybrid_mini8"}
LONG = {"epochs": 120, "batch_size": 1024, "optimizer": "muon", "lr": 4e-3, "augment": "medium"}

STUDY = Study(
    name="distillation",
    question="What does a ViT learn from a better model that the labels do not tell it?",
    variants=[
        Variant("teacher", options=LONG, line="the teacher, a hybrid", once=True, **TEACHER),
        Variant("none", options=OPTIONS, line="ViT", **PLAIN),
        Variant("hard", options=OPTIONS | TAUGHT | {"distill": "hard"}, line="ViT", **PLAIN),
        Variant("none, Muon", options=MUON, line="ViT, Muon", **PLAIN),
        # What the token and its head bring by themselves, for those with a teacher have them too.
        Variant(
            "none, but a token, Muon",
            options=MUON,
            line="ViT, Muon",
            model=PLAIN["model"],
            settings=PLAIN["settings"] | {"distillation_token": True},
        ),
        Variant("hard, Muon", options=MUON | TAUGHT | {"distill": "hard"}, line="ViT, Muon", **PLAIN),
        Variant("soft, Muon", options=MUON | TAUGHT | {"distill": "soft"}, line="ViT, Muon", **PLAIN),
    ],
    minutes=20,
    data="tiny_imagenet.npz",
    seeds=(0, 1, 2),
    notes="Tiny-ImageNet from scratch: the teacher, once, 120 epochs, its pupils 30; AdamW unless said.",
)

if __name__ == "__main__":
    main(STUDY)
