// The Studio: what is chosen, and who is told when it changes.

import { Refused, about } from "./api.js";
import { placed } from "./attention.js";
import { gradient } from "./colour.js";
import { drawGlass } from "./glass.js";
import { HeadGrid } from "./heads.js";
import { listen } from "./incoming.js";
import { Painter } from "./mae.js";
import { Pane, clamp } from "./pane.js";
import { HeadPlot, PositionGrid, evenDistance } from "./plots.js";
import { savePicture } from "./save.js";
import { Strip, percent, told } from "./strip.js";
import { OF_BLOCKS, OVERLAYS, allModels, applies, modelLine, overlayName, sentence } from "./words.js";

const $ = (id) => document.getElementById(id);
const root = document.documentElement;
root.dataset.state = "loading";

const view = { layer: 0, head: null, overlay: "attention", opacity: 0.72, size: null, fit: "trained", query: { kind: "front", index: 0 } };
const panes = [];
let resting, rested = null;
let studio, active = null, hoverStart = null, painter = null;

// ---- drawing, at most once per frame

let pending = false;
function schedule() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => { pending = false; draw(); });
}

function draw() {
  for (const pane of panes) if (pane.look) drawPane(pane);
  if (active?.look) drawActive(active);
  if (hoverStart !== null) {
    performance.clearMeasures("hover");
    performance.measure("hover", { start: hoverStart, end: performance.now() });
    hoverStart = null;
  }
}

function drawPane(pane) {
  const { stage } = pane, overlay = pane.overlay(), grid = pane.look.about.grids[pane.layer()];
  Object.assign(stage, { opacity: view.opacity, lines: $("lines").checked, smooth: $("smooth").checked, pixels: $("pixels").checked, tapHides: $("tap").checked, grid });
  const query = pane.query(), asks = ["attention", "similar"].includes(view.overlay);
  stage.query = asks && query.kind === "patch" ? placed(query, grid) : null;
  if (overlay?.pending) { /* what was there stays until the new one is here */ } else stage.setOverlay(overlay && !overlay.error ? overlay : null);
  stage.paint();
  pane.readout.replaceChildren(...sentence(view, pane, overlay, grid));
  drawScale(pane, overlay);
}

function drawScale(pane, overlay) {
  const heat = overlay?.values, [low, bar, middle, rest, high] = pane.scale.children;
  pane.scale.style.visibility = heat ? "visible" : "hidden";
  if (!heat) return;
  bar.style.backgroundImage ||= gradient(0, 0.5);
  rest.style.backgroundImage ||= gradient(0.5, 1);
  const said = view.overlay === "attention" ? percent : (v) => v.toPrecision(2), { low: from = 0 } = overlay;
  low.textContent = from ? from.toFixed(2) : "0";
  middle.textContent = said(from + overlay.top * (overlay.root ? 0.25 : 0.5));
  high.textContent = said(from + overlay.top);
}

function drawActive(pane) {
  const layer = pane.layer(), head = pane.head(), { about: seen } = pane.look, query = pane.query();
  if (pane.attention) {
    const row = (l, h) => (pane.attention.has(l) ? pane.attention.row(l, h, placed(query, seen.grids[l])).values : null);
    heads.draw({ grids: seen.grids, heads: pane.model.heads, row, layer, head, accent: "#e9b95c" });
  }
  positions.mark(query.kind === "patch" ? placed(query, seen.grid) : null);
  distance.mark(layer, head); entropy.mark(layer, head);
}

// ---- what happens when something arrives or is chosen

const shared = {
  view,
  get models() { return studio.models; },
  changed(pane, what) {
    if (what === "look") { $("welcome").hidden = true; $("studio").hidden = false; pane.root.classList.remove("empty"); activate(pane, true); painter?.paint(); }
    if (pane === active && (what === "spreads" || what === "positions")) drawMeasures(pane);
    schedule();
  },
  looked(y, x, time, pane) {
    const grid = pane.look?.about.grids[pane.layer()];
    if (!grid) return;
    const next = { kind: "patch", y, x };
    if (view.query.kind === "patch" && placed(view.query, grid) === placed(next, grid)) return;
    view.query = next;
    hoverStart ??= time;
    clearTimeout(resting);
    resting = setTimeout(() => { rested = next; }, 300);
    markTokens();
    schedule();
  },
  // On its way to a slider the pointer crosses other patches: what counts is the one it last rested on.
  left() {
    clearTimeout(resting);
    if (rested && view.query.kind === "patch") { view.query = rested; schedule(); }
  },
  key: stageKey,
  show: chooseOverlay,
  answered(pane, classes) { say(`${classes[0].label}, ${told(classes[0])}`); },
  failed,
  active(pane) { if (pane !== active && pane.look) activate(pane); },
  ready() {
    root.dataset.state = "ready";
    const [first] = active.look.about.classes;
    if (first) say(`${active.picture.name || "The picture"}: ${first.label}, ${told(first)}`);
    else if (active.said) say(`${active.picture.name || "The picture"}: ${active.said.summary}`);
    for (const id of ["save", "compare"]) $(id).disabled = false;
  },
};

function activate(pane, afresh) {
  if (pane === active && !afresh) return;
  active = pane;
  for (const one of panes) one.root.classList.toggle("active", one === pane);
  const { model } = pane;
  $("model-line").textContent = modelLine(model);
  $("layer").max = model.heads.length;
  $("size").max = model.sizes.length - 1;
  overlayChips(model);
  tokenChips(model);
  strip.draw(pane.look, pane.stage.picture, model.prefix.length, pane.layer());
  $("heads-caption").textContent = `blocks across, heads down${pane.look.about.at_once ? "" : "; at this size, those of the blocks you choose"}`;
  $("heads-canvas").setAttribute("aria-label", `Small maps of all ${model.heads.reduce((a, b) => a + b, 0)} heads for the chosen token. The block and head sliders choose one.`);
  drawMeasures(pane);
  syncDials();
}

function drawMeasures(pane) {
  const { spreads, positions: found, model } = pane;
  if (spreads) {
    const even = model.family !== "SwinTransformer", { grid } = pane.look.about;
    const tokens = grid[0] * grid[1] + model.prefix.length;
    const far = evenDistance(grid, model.stride);
    distance.draw(spreads.distance, even && { value: far, name: `even attention ${far.toFixed(0)} px` });
    entropy.draw(spreads.entropy, even && { value: Math.log(tokens), name: `even attention ln ${tokens}` });
  }
  if (found?.about.error) positions.say(found.about.error);
  else if (found) positions.draw(found.arrays.similarity.data, found.about.grid);
}

// ---- controls

const strip = new Strip($("stages"), chooseLayer);
// Who chooses a head wants to see where it looks.
const both = (layer, head) => { view.head = head; if (view.overlay !== "attention") chooseOverlay("attention"); chooseLayer(layer); };
const heads = new HeadGrid($("heads-canvas"), both);
const distance = new HeadPlot($("distance"), { title: "Mean attention distance", unit: "px", digits: 0, meaning: "How far away the patches are that a head looks at." }, both);
const entropy = new HeadPlot($("entropy"), { title: "Attention entropy", unit: "nats", digits: 1, meaning: "How evenly a head spreads its attention: low is a sharp look, high an even one." }, both);
const positions = new PositionGrid($("positions"), (y, x, time) => { if (active) shared.looked(y, x, time, active); });

function chooseLayer(layer) {
  view.layer = clamp(layer, 0, (active?.model.heads.length ?? 1) - 1);
  syncDials();
  schedule();
}

// The sides where they differ: a picture in its own shape has no one size.
function inputSize(pane) {
  const [h, w] = pane.size0 ?? [0, 0], current = pane.body?.size === pane.size() && pane.body.fit === view.fit;
  return current && h !== w ? `${w}×${h} px` : `${pane.size()} px`;
}

function syncDials() {
  if (!active) return;
  const count = active.model.heads[active.layer()];
  $("layer").value = active.layer() + 1;
  $("head").max = count;
  $("head").value = view.head === null ? 0 : active.head() + 1;
  $("size").value = active.model.sizes.indexOf(active.size());
  const said = {
    layer: `${active.layer() + 1} of ${active.model.heads.length}`,
    head: view.head === null ? `mean of ${count}` : `${active.head() + 1} of ${count}`,
    opacity: `${Math.round(100 * view.opacity)}\u202f%`,
    size: inputSize(active),
  };
  for (const [id, text] of Object.entries(said)) {
    const input = $(id);
    $(`${id}-out`).textContent = text;
    input.setAttribute("aria-valuetext", text);
    input.style.setProperty("--part", `${(100 * (input.value - input.min)) / Math.max(1, input.max - input.min)}%`);
  }
  $("layer").disabled = !OF_BLOCKS.includes(view.overlay);
  $("head").disabled = view.overlay !== "attention";
  strip.mark(active.layer());
}

$("layer").addEventListener("input", (event) => chooseLayer(event.target.value - 1));
$("head").addEventListener("input", (event) => { view.head = event.target.value > 0 ? event.target.value - 1 : null; syncDials(); schedule(); });
$("opacity").addEventListener("input", (event) => { view.opacity = event.target.value / 100; syncDials(); schedule(); });
for (const id of ["lines", "smooth", "pixels", "tap"]) $(id).addEventListener("change", schedule);

let sizing;
function resized() {
  syncDials();
  clearTimeout(sizing);
  sizing = setTimeout(() => { for (const pane of panes) if (pane.picture) { pane.hidden.clear(); pane.refresh(); } }, 90);
}
$("size").addEventListener("input", (event) => { view.size = active.model.sizes[event.target.value]; resized(); });
$("whole").addEventListener("change", (event) => { view.fit = event.target.checked ? "whole" : "trained"; resized(); });

OVERLAYS.forEach(([key, name, meaning], i) => {
  const label = document.createElement("label"), input = document.createElement("input");
  Object.assign(input, { type: "radio", name: "overlay", value: key, checked: key === view.overlay });
  label.title = `${meaning} (${i + 1})`;
  label.append(input, Object.assign(document.createElement("span"), { textContent: name }));
  input.addEventListener("change", () => chooseOverlay(key));
  $("overlays").querySelector(".chips").append(label);
});

// Those that the model has; one that it has not gives way to its answer.
function overlayChips(model) {
  for (const input of document.querySelectorAll("input[name=overlay]")) {
    input.parentElement.hidden = !applies(input.value, model);
    input.nextElementSibling.textContent = overlayName(input.value, model);
  }
  if (!applies(view.overlay, model)) chooseOverlay(model.overlay === null ? "attention" : "said");
}

function chooseOverlay(key) {
  view.overlay = key;
  const [, , meaning] = OVERLAYS.find(([name]) => name === key);
  $("meaning").textContent = meaning;
  document.querySelector(`input[name=overlay][value=${key}]`).checked = true;
  syncDials();
  schedule();
}
chooseOverlay("attention");

function tokenChips(model) {
  const chips = model.prefix.map((name, index) => ({ name, query: { kind: "front", index } }));
  chips.push({ name: "mean of the patches", query: { kind: "mean" } });
  $("tokens").replaceChildren(...chips.map(({ name, query }) => {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: name });
    button.addEventListener("click", () => { view.query = query; markTokens(); schedule(); });
    button.query = query;
    return button;
  }), Object.assign(document.createElement("span"), { className: "small", textContent: "or a patch of the picture" }));
  markTokens();
}

function markTokens() {
  for (const button of $("tokens").querySelectorAll("button")) {
    const { query } = button, now = active?.query() ?? view.query;
    button.setAttribute("aria-pressed", String(query.kind === now.kind && query.index === now.index));
  }
}

// ---- keys

function stageKey(event, pane) {
  const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
  const grid = pane.look?.about.grids[pane.layer()];
  if (!grid) return;
  const [h, w] = grid, query = pane.query();
  const now = query.kind === "patch" ? placed(query, grid) : Math.floor(h / 2) * w + Math.floor(w / 2);
  if (move) {
    const row = clamp(Math.floor(now / w) + (query.kind === "patch" ? move[0] : 0), 0, h - 1), column = clamp((now % w) + (query.kind === "patch" ? move[1] : 0), 0, w - 1);
    shared.looked((row + 0.5) / h, (column + 0.5) / w, event.timeStamp, pane);
    requestAnimationFrame(() => say(pane.readout.textContent));
  } else if ((event.key === " " || event.key === "Enter") && query.kind === "patch") {
    const { y, x } = query;
    pane.hide(y, x, !pane.hidden.has(pane.stage.hiddenAt(y, x)));
  } else return;
  event.preventDefault();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("keys").open) return;
  if (["SELECT", "TEXTAREA"].includes(event.target.tagName)) return;
  const number = Number(event.key);
  const keys = {
    "[": () => chooseLayer(active.layer() - 1), "]": () => chooseLayer(active.layer() + 1),
    ",": () => { view.head = view.head > 0 ? view.head - 1 : null; }, ".": () => { view.head = Math.min((view.head ?? -1) + 1, active.model.heads[active.layer()] - 1); },
    c: () => { view.query = { kind: "front", index: 0 }; markTokens(); },
    r: () => active.showAll(), o: () => $("file").click(), b: () => $("compare").click(), s: () => $("save").click(), t: switchTheme, "?": () => $("keys").showModal(),
  };
  if (number >= 1 && number <= OVERLAYS.length && active && applies(OVERLAYS[number - 1][0], active.model)) chooseOverlay(OVERLAYS[number - 1][0]);
  else if (keys[event.key.toLowerCase()] && (active || "ot?".includes(event.key.toLowerCase()))) keys[event.key.toLowerCase()]();
  else return;
  event.preventDefault();
  syncDials();
  schedule();
});

// ---- pictures in

function open(source, name, pane = panes.find((p) => !p.picture) ?? active ?? panes[0]) {
  hideMessage();
  if (source.size !== undefined && source.size > studio.limits.bytes) {
    return failed(new Refused(`That file has ${(source.size / 2 ** 20).toFixed(0)} MB, and the Studio takes up to ${studio.limits.bytes / 2 ** 20}: save it smaller, or as a JPEG.`));
  }
  if (source.size === 0) return failed(new Refused("That file is empty (0 bytes): choose another."));
  return pane.show(source, name);
}

function sampleButtons(place, pane) {
  place.replaceChildren(...studio.samples.map(({ name, credit }, number) => {
    const button = document.createElement("button"), image = document.createElement("img");
    Object.assign(button, { type: "button", title: credit ? `${name} (${credit})` : name });
    Object.assign(image, { src: `/api/samples/${number}`, alt: `Sample: ${name}`, loading: "lazy" });
    button.append(image);
    button.addEventListener("click", () => open({ sample: number }, name, pane));
    return button;
  }));
}

function addPane() {
  const pane = new Pane(shared);
  panes.push(pane);
  pane.root.classList.add("empty");
  if (panes.length === 1) pane.stage.canvas.id = "stage";
  $("panes").append(pane.root);
  sampleButtons(pane.samples, pane);
  return pane;
}

// Another model if there is one, of the same picture; else another picture.
function sideBySide() {
  if (panes.length > 1) {
    const [gone] = panes.splice(1);
    gone.cancel?.abort();
    gone.root.remove();
    activate(panes[0], true);
  } else {
    const pane = addPane(), { source, name } = panes[0].picture;
    const other = studio.models.findIndex((model, i) => i !== panes[0].number && !model.reconstructs);
    if (other >= 0) { pane.use(other); pane.show(source, name); } else if (!studio.samples.length) pane.root.querySelector(".invite").textContent = "Drop a second picture here.";
  }
  const two = panes.length > 1;
  $("work").classList.toggle("two", two);
  $("compare").setAttribute("aria-pressed", String(two));
  schedule();
}
$("compare").addEventListener("click", sideBySide);
$("save").addEventListener("click", () => {
  const shown = panes.filter((pane) => pane.look);
  savePicture(shown, $("heads-canvas"), (pane) => `${overlayName(view.overlay, pane.model)}. ${pane.readout.textContent}`).catch(failed);
});

listen({ panes, open, failed });

// ---- words, theme, start

let saying;
function say(text) {
  clearTimeout(saying);
  saying = setTimeout(() => { $("status").textContent = text; }, 300);
}

let leaving;
function failed(error) {
  if (!(error instanceof Refused)) console.error(error); // a mistake of this page, not of its visitor
  if (root.dataset.state === "busy") root.dataset.state = panes.some((pane) => pane.look) ? "ready" : "empty";
  $("message").textContent = error.message;
  $("message").hidden = false;
  clearTimeout(leaving);
  leaving = setTimeout(hideMessage, 12_000);
}
function hideMessage() { $("message").hidden = true; }
$("message").addEventListener("click", hideMessage);

function switchTheme() {
  const next = root.dataset.theme === "dark" ? "light" : "dark";
  root.dataset.theme = next;
  try { localStorage.setItem("vitrail-theme", next); } catch { /* not kept, then */ }
  themeLabel();
  schedule();
}
const themeLabel = () => $("theme").setAttribute("aria-label", `Switch to the ${root.dataset.theme === "dark" ? "light" : "dark"} theme`);
$("theme").addEventListener("click", switchTheme);
$("help").addEventListener("click", () => $("keys").showModal());
window.addEventListener("resize", () => { strip.fit(); schedule(); });

drawGlass($("glass"));
themeLabel();
try {
  studio = await about();
  studio.models.forEach((model, number) => { model.number = number; });
  view.layer = Math.round(0.8 * studio.models[0].heads.length) - 1; // where attention has found its object, and not yet gone to a few idle patches
  addPane();
  overlayChips(studio.models[0]);
  if (studio.models[0].overlay !== null) chooseOverlay("said");
  $("model-line").textContent = allModels(studio.models);
  sampleButtons($("samples-first"), panes[0]);
  const mae = studio.models.find((model) => model.reconstructs);
  if (mae) painter = new Painter($("mae"), mae, { asked: (number) => { const asked = active?.asked(number); return asked && { ...asked, size: asked.size >= mae.size && mae.sizes.includes(asked.size) ? asked.size : mae.size }; }, kept: (question) => active.kept(question), failed });
  root.dataset.state = "empty";
} catch (error) { failed(error); }
