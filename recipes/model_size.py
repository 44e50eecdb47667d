"""(b) Accuracy against the size of the model, ViT and ResNet, on all of CIFAR-10.

python recipes/model_size.py --data cifar10.npz --jobs 2
"""

from study import Study, Variant, main

OPTIONS = {"epochs": 60, "batch_size": 512, "lr": 1e-3}
# width, depth, heads → millions of parameters
VIT = {"96×6": (96, 6, 6, 0.5), "192×9": (192, 9, 12, 2.7), "320×9": (320, 9, 10, 7.5), "448×12": (448, 12, 14, 19.4)}
RESNET = {"resnet18": 11.2, "resnet34": 21.3, "resnet50": 23.5}

STUDY = Study(
    name="model_size",
    question="What does a larger model bring, ViT and ResNet, with 50,000 images?",
    variants=[
        Variant(
            f"vit-{name}",
            settings={"width": width, "depth": depth, "heads": heads},
            options=OPTIONS,
            line="ViT",
            x=millions,
        )
        for name, (width, depth, heads, millions) in VIT.items()
    ]
    + [Variant(name, f"tv:{name}", options=OPTIONS, line="ResNet", x=millions) for name, millions in RESNET.items()],
    minutes=20,
    x="parameters, millions",
    logarithmic="x",
    notes="CIFAR-10 from scratch, 60 epochs.",
)

if __name__ == "__main__":
    main(STUDY)
