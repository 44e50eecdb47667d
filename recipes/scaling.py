"""(h) Time and memory of a training step against the image size, and the exponents.

python recipes/scaling.py
"""

from study import Study, Variant, main

# Images at a time, so that a step is long enough to be measured and small enough to fit.
BATCH = {128: 128, 224: 64, 384: 32, 512: 16, 768: 8, 1024: 4}

STUDY = Study(
    name="scaling",
    question="How do time and memory grow with the side of the image?",
    variants=[
        Variant(
            f"{model}-{side}", model, options={"image_size": side, "batch_size": batch}, verb="cost", line=words, x=side
        )
        for model, words in (("vit_s16", "ViT-S/16"), ("swin_t", "Swin-T"), ("vit_s32", "ViT-S/32"))
        for side, batch in BATCH.items()
    ],
    minutes=2,
    figure="step_ms",
    axis="training step, ms per image",
    beside=("memory_mb", "memory of a training step, MB per image"),
    x="side of the image, pixels",
    logarithmic="xy",
    notes="One H200, bf16. Twice the side is four times the tokens: linear layers grow with the square, attention with "
    "the fourth power.",
)

if __name__ == "__main__":
    main(STUDY)
