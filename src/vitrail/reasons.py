"""Why something was chosen, as a value: a code and its numbers. The sentence is made where it is shown."""

from typing import Any

SENTENCES = {
    # choices of a plan
    "recorded": "{text}",  # by an earlier part of a run that is resumed
    "as_asked": "as asked",
    "usual": "usual",
    "images": "{n:,} images",
    "scratch": "from scratch",
    "after_mae": "after MAE",
    "scratch_images": "from scratch, {n:,} images",
    "after_mae_images": "after MAE, {n:,} images",
    "few_pixels": "{start}, images of few pixels",
    "muon_scratch": "{start}; ahead of AdamW on Tiny-ImageNet",
    "fine_tuning": "fine-tuning",
    "layers_general": "early layers are general already",
    "layers_alike": "from scratch all layers learn alike",
    "layers_new": "what is added is new in every layer",
    "all_new": "everything that is trained is new",
    "one_rate": "a convolutional network learns at one rate",
    "no_paths": "the model has no paths to drop",
    "frozen_paths": "frozen blocks are not dropped",
    "average": "at most; less at first, so that about the last tenth of the run counts",
    "own_val": "the data has its own val/",
    "refit": "{n:,} images: in the end the model is trained on all of them, which takes as long again",
    "thresholds": "the thresholds belong to the weights that they were chosen with",
    "threshold": "the threshold belongs to the weights that it was chosen with",
    "mae_paper": "MAE's paper",
    "mae_epochs": "MAE's paper: several times what other weights need",
    "mae_rate": "MAE's paper: 2e-3 at {batch}",
    "deit_paper": "DeiT's paper",
    "hard_better": "better than soft in DeiT's paper",
    "batch_scaled": "{reason}, × √({batch}/{usual}) for this batch",
    "whole_batch": "all images at once: there are no more",
    "nothing_held_out": "nothing is held out",
    "half_of_run": "half of so short a run",
    "moved": "{reason}; at {side} pixels images are moved, not cropped",
    "later": "follows from the linear probe on frozen features",
    "probe_score": "the linear probe reaches {score:.1%}",
    "probe_score_times": "the linear probe reaches {score:.1%}, × {times} for {tune}",
    "probe_figure": "the linear probe reaches {figure} {score:.3f}",
    "probe_figure_times": "the linear probe reaches {figure} {score:.3f}, × {times} for {tune}",
    "too_many_to_probe": "too many images for a linear probe first",
    "regress_light": "what changes colour or covers a part may change the number",
    "spoof_evidence": "else the evidence of an attack is lost",
    "spoof_light": "mirror images and crops of 60 % or more, else the evidence of an attack is lost",
    "spoof_epochs": "many images of few people",
    "spoof_sampling": "live faces as often as attacks, each attack type alike",
    "spoof_development": "of the subjects",
    "dense_batch": "usual for a dense task",
    "dense_new": "of the new layers and the last block",
    "dense_sizes": "objects come in all sizes",
    "dense_warmup": "a twentieth of the run, at most 5 epochs",
    "dense_refit": "a dense task is trained once",
    "pyramid_adapter": "brings back the detail that patches have lost",
    "pyramid_own": "a Swin has maps of four strides",
    "upernet": "reads all strides; linear and fcn are smaller",
    "faster_rcnn": "the most reliable on little data; mask_rcnn also learns outlines, retinanet has one stage",
    "view_gpu": "small objects count, and a GPU has time",
    "view_cpu": "on a CPU; a larger size finds smaller objects",
    "view_small": "half as large again as the images, {short}",
    "as_weights": "as the weights had it",
    "paper": "the paper's",
    "as_model": "as --model says",
    "better_features": "better features",
    "mae_rate_scaled": "the paper's: 1.5e-4 · batch/256 = 2.4e-3 at 4096",
    "mae_pretrain_epochs": "{n:,} images; the paper has 800, and more still helps",
    "mae_warmup": "the paper's: 40 of 800",
    "tiny_image": "an image of few pixels",
    "bf16_gpu": "this GPU has it",
    "no_bf16": "this GPU has no bf16",
    "fp32_cpu": "on a CPU",
    "bf16_trial": "as asked, and a trial in a child process went well",
    "teacher": "{teacher}",
    "distill_token": "{reason}, by a distillation token; the mean of its head and the class head predicts",
    "distill_frozen": "{reason}, on its logits: a distillation token would have to learn, and with --tune {tune} the "
    "blocks are frozen",
    "distill_logits": "{reason}, on its logits: it reads no class token, beside which a distillation token would stand",
    # where a model starts from
    "start_scratch_asked": "{name} from scratch: --weights none.",
    "start_scratch_cnn": "{name} from scratch: torchvision's baselines are built without weights.",
    "start_scratch_unknown": "{name} from scratch: no public weights are recorded for it.",
    "start_scratch_missing": "{name} from scratch: its public weights could not be had ({detail}).",
    "start_weights": "Starts from {what} in {source}.",
    "start_public": "Starts from {name} with its public weights, hf://{hub}.",
    "start_shipped": "Starts from {name}, which ships inside; with --weights none, from scratch.",
    "start_shipped_instead": "For {name}, its public weights could not be had ({detail}).",
    "start_encoder": "Starts from the encoder in {source}, a masked autoencoder; a new head on its patches' mean.",
    "start_backbone": "Starts from the backbone of the model in {source}.",
    "start_whole": "Starts from the whole model in {source}.",
    "start_backbone_more": "Starts from the backbone, and {count} of {total} other weights, of the model in {source}.",
    "start_token": "It gets a distillation token, to learn from the teacher as DeiT does.",
    "start_small_stem": "Its first convolution is 3×3 without stride or pooling, for images of {size}.",
    "start_mae_scratch": "{name} from scratch, trained on its own images.",
    "start_mae": "Goes on from {what} in {source}.",
}


class Reason:
    """`Reason("images", n=1200)`: equal to another of the same code and fields; `str` makes its sentence."""

    def __init__(self, code: str, **fields: Any):
        self.code, self.fields = code, fields

    def __str__(self) -> str:
        return SENTENCES[self.code].format(**self.fields)

    def __repr__(self) -> str:
        return f"Reason({', '.join([repr(self.code), *(f'{k}={v!r}' for k, v in self.fields.items())])})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reason) and (self.code, self.fields) == (other.code, other.fields)

    def __hash__(self) -> int:
        return hash((self.code, *self.fields))
