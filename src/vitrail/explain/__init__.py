"""Looking inside: what a model attends to, why it says what it says, and whether to believe the explanation.

Functions take (model, x), with x a normalised batch [B, C, H, W] on the model's device, and give float32 on the CPU.
"""

from vitrail.explain.attention import (
    attention,
    attention_by_layer,
    attention_distance,
    attention_entropy,
    rollout,
)
from vitrail.explain.explanation import Explanation, explain_picture
from vitrail.explain.faithfulness import Comparison, Curves, compare, faithfulness
from vitrail.explain.methods import METHODS, methods_for
from vitrail.explain.relevance import grad_cam, relevance
from vitrail.explain.tokens import (
    Reconstruction,
    patch_filters,
    position_similarity,
    reconstruct,
    token_pca,
    token_similarity,
)

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
