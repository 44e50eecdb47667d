// What the page says: names of overlays, one sentence for what is shown, one line for a model.

import { placed } from "./attention.js";
import { percent } from "./strip.js";

export const OVERLAYS = [
  ["attention", "Attention", "Where the chosen token looks, in one block. Move over the picture to choose a patch."],
  ["rollout", "Rollout", "Attention multiplied through all blocks, residual connections included."],
  ["relevance", "Relevance", "Which patches speak for a class (press one): attention weighted by its gradient."],
  ["grad_cam", "Grad-CAM", "Tokens weighted by how much they raise a class (press one)."],
  ["colours", "Token colours", "Tokens alike have colours alike: their main direction from blue to gold, then green to red, then dark to light."],
  ["similar", "Similar tokens", "How alike the tokens after a block are to the patch you point at (cosine)."],
  ["none", "Picture", "The picture alone."],
  ["said", "Answer", "What the whole model says. The other views look into its backbone alone."],
];
export const OF_BLOCKS = ["attention", "colours", "similar"]; // the others are of the whole model
const OF_CLASSES = ["relevance", "grad_cam"];

// Which of them a model has, and under which name.
export const applies = (key, { task }) => (key === "said" ? task !== "classify" : task === "classify" || !OF_CLASSES.includes(key));
export const overlayName = (key, { task }) => (key === "said" ? { segment: "Mask", detect: "Boxes" }[task] ?? "Answer" : OVERLAYS.find(([name]) => name === key)[1]);

const where = (patch, [, w]) => `row ${Math.floor(patch / w) + 1}, column ${(patch % w) + 1}`;
const bold = (text) => Object.assign(document.createElement("b"), { textContent: text });

export function sentence(view, pane, overlay, grid) {
  if (overlay?.error) return [overlay.error];
  if (overlay?.pending) return ["…"];
  const query = pane.query(), block = `Block ${pane.layer() + 1}`;
  if (view.overlay === "said" && pane.said) {
    const here = query.kind === "patch" ? pane.said.at(query.y, query.x) : null;
    return here ? ["Here: ", bold(here), `. In all: ${pane.said.summary}.`] : [`${pane.said.summary}.`];
  }
  if (view.overlay === "attention") {
    const head = pane.head() === null ? "mean of the heads" : `head ${pane.head() + 1}`;
    const who = query.kind === "patch" ? `patch ${where(placed(query, grid), grid)}` : query.kind === "mean" ? "the patches, on average," : `the ${pane.model.prefix[query.index]}`;
    const best = overlay.values.indexOf(overlay.top);
    const front = overlay.front.reduce((a, b) => a + b, 0);
    const said = [`${block}, ${head}: `, bold(who), ` ${query.kind === "mean" ? "look" : "looks"} most at ${where(best, grid)} (${percent(overlay.top)})`];
    if (pane.model.prefix.length) said.push(`; ${percent(front)} goes to ${pane.model.prefix.length === 1 ? `the ${pane.model.prefix[0]}` : "the tokens in front"}`);
    return [...said, "."];
  }
  if (view.overlay === "relevance" || view.overlay === "grad_cam") {
    const label = pane.look.about.classes.find((c) => c.index === pane.target)?.label ?? pane.look.about.classes[0]?.label;
    return label ? ["What speaks for ", bold(label), "."] : [];
  }
  if (view.overlay === "similar") return [`${block}: how alike the tokens are to `, bold(where(overlay.patch, grid)), "."];
  if (view.overlay === "colours") return [`${block}: ${grid[1]}×${grid[0]} tokens of ${pane.look.about.stages.filter((s) => s.key === "block")[pane.layer()].shape.at(-1)} numbers.`];
  if (view.overlay === "rollout") return ["All blocks together, seen from the answer."];
  return [`${pane.size0[1]}×${pane.size0[0]} pixels, as the model gets them.`];
}

// Before a picture is chosen: one at length, several by name.
export const allModels = (models) => (models.length === 1 ? modelLine(models[0]) : `${models.length} models: ${models.map(({ name, reconstructs }) => (reconstructs ? `${name}, which paints` : name)).join("; ")}`);

export const modelLine = (model) => {
  const heads = [...new Set(model.heads)], stride = model.stride.join("×");
  return `${model.name}: ${(model.parameters / 1e6).toFixed(1)} M parameters, ${model.heads.length} blocks of ${heads.length > 1 ? `${heads[0]} to ${heads.at(-1)}` : heads[0]} heads, ${model.family === "SwinTransformer" ? "windows on a pyramid" : `patches of ${stride}`}${model.head ? `, ${model.head}` : ""}${model.classes ? `, ${model.classes} classes` : ""}`;
};
