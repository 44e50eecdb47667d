"""Looking inside: what a model attends to, why it says what it says, and whether to believe the explanation.

Functions take (model, x), with x a normalised batch [B, C, H, W] on the model's device, and give float32 on the CPU.
"""

from typing import TYPE_CHECKING

from vitrail.lazy import lazy

if TYPE_CHECKING:
    from vitrail.explain.attention_analysis import (
        attention,
        attention_by_layer,
        attention_distance,
        attention_entropy,
        rollout,
    )
    from vitrail.explain.deletion_insertion import Comparison, Curves, compare, faithfulness
    from vitrail.explain.explanation import Explanation, explain_picture
    from vitrail.explain.gradient_maps import grad_cam, relevance
    from vitrail.explain.methods import METHODS, methods_for
    from vitrail.explain.tokens import (
        Reconstruction,
        patch_filters,
        position_similarity,
        reconstruct,
        token_pca,
        token_similarity,
    )
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "vitrail.explain.attention_analysis": (
                "attention", "attention_by_layer", "attention_distance", "attention_entropy", "rollout",
            ),
            "vitrail.explain.deletion_insertion": ("Comparison", "Curves", "compare", "faithfulness"),
            "vitrail.explain.explanation": ("Explanation", "explain_picture"),
            "vitrail.explain.gradient_maps": ("grad_cam", "relevance"),
            "vitrail.explain.methods": ("METHODS", "methods_for"),
            "vitrail.explain.tokens": (
                "Reconstruction", "patch_filters", "position_similarity", "reconstruct", "token_pca",
                "token_similarity",
            ),
        },
    )  # fmt: skip

__all__ = [
    "METHODS",
    "Comparison",
    "Curves",
    "Explanation",
    "Reconstruction",
    "attention",
    "attention_by_layer",
    "attention_distance",
    "attention_entropy",
    "compare",
    "explain_picture",
    "faithfulness",
    "grad_cam",
    "methods_for",
    "patch_filters",
    "position_similarity",
    "reconstruct",
    "relevance",
    "rollout",
    "token_pca",
    "token_similarity",
]
