"""A masked autoencoder first, then fine-tuning or a probe, against the same epochs from scratch.

python recipes/pretraining.py --data tiny_imagenet.npz --jobs 2
"""

from study import Study, Variant, main
from variants import PLAIN

# With its decoder 5.1 MB in half precision, so that the first of them can ship inside.
VIT = {"model": "vit_mini8", "settings": PLAIN | {"depth": 7}}
EPOCHS = 30
BOTH = {"batch_size": 512, "compile": "on"}
MAE = {"epochs": 150, **BOTH}
TUNING = {"weights": "run:pretraining", "epochs": EPOCHS, "optimizer": "muon", "refit": "off", **BOTH}
SCRATCH = {"optimizer": "muon", "lr": 1e-3, **BOTH}

STUDY = Study(
    name="pretraining",
    question="Is a masked autoencoder's encoder a better start than none?",
    variants=[
        Variant("pretraining", options=MAE, verb="pretrain", means=True, once=True, **VIT),
        Variant(f"scratch, {EPOCHS} epochs", options=SCRATCH | {"epochs": EPOCHS}, line="from scratch", **VIT),
        Variant(f"MAE, {EPOCHS} epochs", options=TUNING, line="after MAE", **VIT),
        # As many epochs as both together.
        Variant("scratch, 180 epochs", options=SCRATCH | {"epochs": 180}, line="from scratch", once=True, **VIT),
        Variant("MAE, probe", options={"weights": "run:pretraining", "tune": "probe"}, line="frozen", **VIT),
    ],
    minutes=20,
    data="tiny_imagenet.npz",
    seeds=(0, 1, 2),
    notes="Tiny-ImageNet; pre-trained once, 150 epochs of the training images, no labels.",
)

if __name__ == "__main__":
    main(STUDY)
