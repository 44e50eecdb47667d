"""(c) A masked autoencoder first, then fine-tuning or a probe, against the same epochs from scratch.

python recipes/pretraining.py --data tiny_imagenet.npz --jobs 2
"""

from study import Study, Variant, main

EPOCHS = 30
TUNING = {"epochs": EPOCHS, "batch_size": 512, "refit": "off"}
SCRATCH = {"batch_size": 512, "lr": 1e-3}
MODEL = "vit_mini8"

STUDY = Study(
    name="pretraining",
    question="Is a masked autoencoder's encoder a better start than none?",
    variants=[
        Variant("pretraining", MODEL, options={"epochs": 150, "batch_size": 512}, verb="pretrain", means=True),
        Variant(f"scratch, {EPOCHS} epochs", MODEL, options=SCRATCH | {"epochs": EPOCHS}, line="from scratch"),
        Variant(f"MAE, {EPOCHS} epochs", MODEL, options=TUNING | {"weights": "run:pretraining"}, line="after MAE"),
        # As long as both together, in time: an encoder that sees a quarter of the patches takes a third of it.
        Variant("scratch, 80 epochs", MODEL, options=SCRATCH | {"epochs": 80}, line="from scratch"),
        Variant("MAE, probe", MODEL, options={"weights": "run:pretraining", "tune": "probe"}, line="frozen"),
    ],
    minutes=15,
    data="tiny_imagenet.npz",
    seeds=(0, 1, 2),
    notes="Tiny-ImageNet, 64×64; pre-trained for 150 epochs on the training images, without labels.",
)

if __name__ == "__main__":
    main(STUDY)
