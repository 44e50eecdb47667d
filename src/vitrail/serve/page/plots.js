// Mean attention distance and entropy, a dot for each head of each block; and how alike the positions of patches are.

import { HEAT, bitmap, headColour } from "./colour.js";

const SVG = "http://www.w3.org/2000/svg";
const make = (name, attributes = {}, text) => {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
};
const WIDTH = 400, HEIGHT = 300, LEFT = 34, BOTTOM = 26, TOP = 20;

export class HeadPlot {
  // `choose(layer, head)`; `words` are {title, unit, meaning, digits}
  constructor(figure, words, choose) {
    this.figure = figure; this.words = words; this.choose = choose;
    this.svg = make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
    const caption = document.createElement("figcaption"), title = document.createElement("b");
    title.textContent = words.title;
    this.meaning = document.createElement("span");
    caption.append(title, this.meaning);
    figure.append(caption, this.svg);
  }

  // `values` [L][H]; `reference` {value, name} is a dashed line.
  draw(values, reference) {
    const all = values.flat().filter((v) => v !== null);
    const top = Math.max(...all, reference?.value ?? 0) * 1.05 || 1;
    const x = (layer) => LEFT + ((layer + 0.5) * (WIDTH - LEFT)) / values.length;
    const y = (v) => HEIGHT - BOTTOM - (v / top) * (HEIGHT - BOTTOM - TOP);
    this.x = x; this.step = (WIDTH - LEFT) / values.length;
    const nodes = [];
    this.column = make("rect", { class: "column", y: TOP, height: HEIGHT - BOTTOM - TOP, width: this.step });
    nodes.push(this.column);
    for (const v of ticks(top)) {
      nodes.push(make("line", { class: "rule", x1: LEFT, x2: WIDTH, y1: y(v), y2: y(v) }));
      nodes.push(make("text", { x: LEFT - 7, y: y(v) + 4, "text-anchor": "end" }, v));
    }
    const every = Math.ceil(values.length / 12);
    values.forEach((_, layer) => {
      if (layer % every === 0 || layer === values.length - 1) nodes.push(make("text", { x: x(layer), y: HEIGHT - 8, "text-anchor": "middle" }, layer + 1));
    });
    if (reference) {
      nodes.push(make("line", { class: "reference", x1: LEFT, x2: WIDTH, y1: y(reference.value), y2: y(reference.value) }));
      // Its name stands above the plot, where no dot can be; a piece of the line goes before it.
      const name = make("text", { x: WIDTH, y: TOP - 8, "text-anchor": "end" }, reference.name);
      const long = reference.name.length * 6 + 10;
      nodes.push(make("line", { class: "reference", x1: WIDTH - long - 22, x2: WIDTH - long, y1: TOP - 12, y2: TOP - 12 }), name);
    }
    const means = values.map((row) => row.reduce((a, b) => a + (b ?? 0), 0) / row.length);
    nodes.push(make("polyline", { class: "mean", points: means.map((v, layer) => `${x(layer)},${y(v)}`).join(" ") }));
    this.dots = [];
    values.forEach((row, layer) => row.forEach((v, head) => {
      if (v === null) return;
      const shift = row.length > 1 ? (head / (row.length - 1) - 0.5) * Math.min(14, this.step * 0.45) : 0;
      const dot = make("circle", { class: "dot", cx: x(layer) + shift, cy: y(v), r: row.length > 8 ? 3.2 : 4.6, fill: headColour(head, row.length) });
      dot.append(make("title", {}, `block ${layer + 1}, head ${head + 1}: ${v.toFixed(this.words.digits)} ${this.words.unit}`));
      dot.addEventListener("click", () => this.choose(layer, head));
      this.dots.push({ dot, layer, head });
      nodes.push(dot);
    }));
    this.svg.replaceChildren(...nodes);
    const range = `block 1: ${means[0].toFixed(this.words.digits)}, last block: ${means.at(-1).toFixed(this.words.digits)} ${this.words.unit}`;
    this.svg.setAttribute("aria-label", `${this.words.title} by block and head. Mean of the heads, ${range}.`);
    this.meaning.textContent = `${this.words.meaning} Mean of the heads: ${range}.`;
  }

  mark(layer, head) {
    if (!this.column) return;
    this.column.setAttribute("x", this.x(layer) - this.step / 2);
    for (const one of this.dots) one.dot.classList.toggle("now", one.layer === layer && (head === null || one.head === head));
  }
}

function ticks(top) {
  const rough = top / 4, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((f) => f * power).find((s) => s >= rough);
  return Array.from({ length: Math.floor(top / step) + 1 }, (_, i) => Number((i * step).toPrecision(6)));
}

// Under uniform attention, how far away the mean patch is: the mean over all pairs, in pixels.
export function evenDistance([h, w], [down, across]) {
  let sum = 0;
  for (let i = 0; i < h; i++) for (let j = 0; j < w; j++) {
    sum += (i ? 2 : 1) * (j ? 2 : 1) * (h - i) * (w - j) * Math.hypot(i * down, j * across);
  }
  return sum / (h * w) ** 2;
}

const MOST_CELLS = 16, CANVAS = 480; // maps across; pixels across, about

export class PositionGrid {
  constructor(figure, look) {
    this.figure = figure;
    this.caption = document.createElement("figcaption");
    const title = document.createElement("b");
    title.textContent = "Position similarity";
    this.meaning = document.createElement("span");
    this.caption.append(title, this.meaning);
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("role", "img");
    figure.append(this.caption, this.canvas);
    this.canvas.addEventListener("pointermove", (event) => {
      if (!this.shown) return;
      const box = this.canvas.getBoundingClientRect(), { rows, columns } = this.shown;
      look(Math.min(0.999, (Math.floor(((event.clientY - box.top) / box.height) * rows) + 0.5) / rows), Math.min(0.999, (Math.floor(((event.clientX - box.left) / box.width) * columns) + 0.5) / columns), event.timeStamp);
    });
  }

  // `data` uint8 [hw, hw] for -1 … 1.
  draw(data, [h, w]) {
    this.data = data; this.grid = [h, w];
    const rows = Math.min(h, MOST_CELLS), columns = Math.min(w, MOST_CELLS);
    const counts = new Uint32Array(256);
    for (let a = 0; a < h * w; a++) for (let b = 0; b < h * w; b++) if (a !== b) counts[data[a * h * w + b]]++;
    const [low, high] = [0.02, 0.995].map((share) => quantile(counts, share));
    // A map of few patches has large ones: the gaps between maps stay thin.
    const side = Math.max(2, Math.round(CANVAS / (columns * w))), gap = Math.max(2, Math.min(side, 6));
    this.plain = document.createElement("canvas");
    this.plain.width = columns * (w * side + gap) - gap; this.plain.height = rows * (h * side + gap) - gap;
    const context = this.plain.getContext("2d"), pixels = new Uint8ClampedArray(4 * h * w);
    context.imageSmoothingEnabled = false;
    for (let r = 0; r < rows; r++) for (let c = 0; c < columns; c++) {
      const from = (Math.floor((r * h) / rows) * w + Math.floor((c * w) / columns)) * h * w;
      for (let i = 0; i < h * w; i++) {
        const v = 3 * Math.max(0, Math.min(255, Math.round((255 * (data[from + i] - low)) / Math.max(1, high - low))));
        pixels.set([HEAT[v], HEAT[v + 1], HEAT[v + 2], 255], 4 * i);
      }
      context.drawImage(bitmap(pixels, w, h), c * (w * side + gap), r * (h * side + gap), w * side, h * side);
    }
    this.canvas.width = this.plain.width; this.canvas.height = this.plain.height;
    this.canvas.hidden = false;
    this.shown = { rows, columns, side, gap };
    const said = (v) => (v / 127.5 - 1).toFixed(2);
    this.meaning.textContent = `One small map per position: how alike the others are to it (cosine, ${said(low)} to ${said(high)}). Rows and columns that light up are what the model has learnt of space.`;
    this.canvas.setAttribute("aria-label", `Grid of ${rows} by ${columns} similarity maps of the position vectors.`);
    this.mark(null);
  }

  mark(patch) {
    if (!this.shown) return;
    const c = this.canvas.getContext("2d"), [h, w] = this.grid, { rows, columns, side, gap } = this.shown;
    c.clearRect(0, 0, this.canvas.width, this.canvas.height);
    c.drawImage(this.plain, 0, 0);
    if (patch === null || patch < 0) return;
    const row = Math.floor((Math.floor(patch / w) * rows) / h), column = Math.floor(((patch % w) * columns) / w);
    // In the gaps, which have the colour of the page; at an edge, where there is none, inside.
    c.strokeStyle = getComputedStyle(this.figure).getPropertyValue("--accent"); c.lineWidth = gap;
    const from = [column * (w * side + gap), row * (h * side + gap)], ends = [from[0] + w * side + gap, from[1] + h * side + gap];
    const [x0, y0] = from.map((v) => Math.max(gap, v) - gap / 2), [x1, y1] = [Math.min(this.canvas.width, ends[0]) - gap / 2, Math.min(this.canvas.height, ends[1]) - gap / 2];
    c.strokeRect(x0, y0, x1 - x0, y1 - y0);
  }

  say(sentence) {
    this.shown = null;
    this.canvas.hidden = true;
    this.meaning.textContent = sentence;
  }
}

function quantile(counts, share) {
  const total = counts.reduce((a, b) => a + b, 0);
  let sum = 0;
  for (let v = 0; v < 256; v++) if ((sum += counts[v]) >= share * total) return v;
  return 255;
}
