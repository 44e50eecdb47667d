"""A masked autoencoder first, then fine-tuning or a probe, against the same epochs from scratch.

python recipes/pretraining.py --data tiny_imagenet.npz --jobs 2
"""

from study import Study, Variant, main

EPOCHS = 30
MAE = {"epochs": 150, "batch_size": 512}
TUNING = {"epochs": EPOCHS, "batch_size": 512, "optimizer": "adamw", "refit": "off"}
SCRATCH = {"batch_size": 512, "optimizer": "adamw", "lr": 1e-3}
MUON = {"optimizer": "muon"}
# With its decoder 5.1 MB in half precision, so that the first of them can ship inside.
PLAIN = {"model": "vit_mini8", "settings": {"depth": 7, "heads": 6, "class_token": False, "pool": "mean"}}

STUDY = Study(
    name="pretraining",
    question="Is a masked autoencoder's encoder a better start than none?",
    variants=[
        Variant("pretraining", options=MAE, verb="pretrain", means=True, once=True, **PLAIN),
        Variant(f"scratch, {EPOCHS} epochs", options=SCRATCH | {"epochs": EPOCHS}, line="from scratch", **PLAIN),
        Variant(f"MAE, {EPOCHS} epochs", options=TUNING | {"weights": "run:pretraining"}, line="after MAE", **PLAIN),
        Variant("scratch, Muon", options=SCRATCH | MUON | {"epochs": EPOCHS}, line="from scratch", **PLAIN),
        Variant("MAE, Muon", options=TUNING | MUON | {"weights": "run:pretraining"}, line="after MAE", **PLAIN),
        # As many epochs as both together, and about as long: small as these are, one of MAE took as long as the other.
        Variant("scratch, Muon, 180 epochs", options=SCRATCH | MUON | {"epochs": 180}, line="from scratch", **PLAIN),
        Variant("MAE, probe", options={"weights": "run:pretraining", "tune": "probe"}, line="frozen", **PLAIN),
    ],
    minutes=20,
    data="tiny_imagenet.npz",
    seeds=(0, 1, 2),
    notes="Tiny-ImageNet; pre-trained once, 150 epochs of the training images, no labels; AdamW unless said.",
)

if __name__ == "__main__":
    main(STUDY)
