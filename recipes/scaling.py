"""Time and memory of a training step against the image size, and the exponents.

python recipes/scaling.py
"""

from study import Study, Variant, main

SIDES = (128, 224, 384, 512, 768, 1024)
# Pixels at a time, the same at every side: a step is long enough that the GPU does not wait for the host, and fits.
PIXELS = {"vit_s16": 2**25, "swin_t": 2**24, "vit_s32": 2**27}
NAMES = {"vit_s16": "ViT-S/16", "swin_t": "Swin-T", "vit_s32": "ViT-S/32"}

STUDY = Study(
    name="scaling",
    question="How do time and memory grow with the side of the image?",
    variants=[
        Variant(
            f"{model}-{side}",
            model,
            options={"image_size": side, "batch_size": pixels // side**2},
            verb="cost",
            line=NAMES[model],
            x=side,
        )
        for model, pixels in PIXELS.items()
        for side in SIDES
    ],
    minutes=2,
    figure="step_ms",
    axis="training step, ms per image",
    beside=("memory_mb", "memory of a training step, MB per image"),
    x="side of the image, pixels",
    logarithmic="xy",
    notes="bf16, not compiled. Twice the side is four times the tokens: linear layers grow with the square, the "
    "arithmetic of attention with the fourth power.",
)

if __name__ == "__main__":
    main(STUDY)
