// What a model that segments or detects says: its mask or its boxes over the picture, and beside it a list.

import { percent } from "./strip.js";

const css = ([r, g, b]) => `rgb(${r} ${g} ${b})`;
const many = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

// From the server's answer: {about: {rows, colours, labels, threshold}, arrays: {mask | objects}} or boxes alone.
export class Said {
  constructor({ about, arrays }, kind) {
    Object.assign(this, about);
    this.kind = kind; this.map = arrays.mask ?? arrays.objects ?? null;
  }

  // As a stage takes it: pixels, clear where nothing is said, and boxes in fractions of the picture.
  overlay() {
    this.drawn ??= { grid: this.map?.shape ?? [1, 1], pixels: this.pixels(), covers: this.kind === "mask", boxes: this.kind === "boxes" ? this.boxes() : [] };
    return this.drawn;
  }

  pixels() {
    if (!this.map) return new Uint8ClampedArray(4);
    const { data } = this.map, pixels = new Uint8ClampedArray(4 * data.length);
    for (let i = 0; i < data.length; i++) {
      const colour = this.kind === "mask" ? this.colours[data[i]] : data[i] && this.colours[this.rows[data[i] - 1].index];
      if (colour) { pixels.set(colour, 4 * i); pixels[4 * i + 3] = this.kind === "mask" ? 255 : 150; }
    }
    return pixels;
  }

  boxes() {
    return this.rows.map(({ label, probability, box, index }) => ({ box, colour: css(this.colours[index]), text: `${label} ${percent(probability)}` }));
  }

  // What is at a place of the picture: the label of its pixel, or the surest box around it.
  at(y, x) {
    if (this.kind === "mask") {
      const [h, w] = this.map.shape;
      return this.labels[this.map.data[Math.floor(y * h) * w + Math.floor(x * w)]] ?? null;
    }
    const found = this.rows.find(({ box: [x0, y0, x1, y1] }) => x >= x0 && x < x1 && y >= y0 && y < y1);
    return found ? `${found.label} ${percent(found.probability)}` : null;
  }

  get title() {
    if (this.kind === "mask") return this.rows.length === 1 ? this.rows[0].label : `${this.rows.length} classes`;
    return this.rows.length ? many(this.rows.length, "object") : "nothing found";
  }

  get summary() {
    if (this.kind === "mask") return this.rows.map((row) => `${row.label} ${percent(row.probability)}`).join(", ");
    const counts = new Map();
    for (const { label } of this.rows) counts.set(label, (counts.get(label) ?? 0) + 1);
    return [...counts].map(([label, count]) => `${count} ${label}`).join(", ") || "nothing found";
  }

  list(best, list) {
    best.hidden = list.hidden = false;
    best.textContent = this.title; best.title = "";
    list.replaceChildren(...this.rows.slice(0, 12).map(({ label, probability, index }) => {
      const make = (name, className, text) => Object.assign(document.createElement(name), { className, textContent: text });
      const item = make("li", "found", ""), line = make("span", "line", ""), swatch = make("i", "swatch", ""), bar = make("span", "bar", ""), part = make("i", "", "");
      swatch.style.background = part.style.background = css(this.colours[index]);
      part.style.width = `${100 * probability}%`;
      line.append(swatch, make("span", "", label), make("b", "", percent(probability)));
      bar.append(part); item.append(line, bar);
      return item;
    }));
    if (this.rows.length > 12) list.append(Object.assign(document.createElement("li"), { className: "found small", textContent: `and ${this.rows.length - 12} more` }));
  }
}

// Boxes with their names on a canvas; a name goes inside where there is no room above.
export function paintBoxes(c, boxes, width, height, scale) {
  c.font = `600 ${13 * scale}px system-ui, sans-serif`;
  c.textBaseline = "middle"; c.lineJoin = "miter";
  for (const { box: [x0, y0, x1, y1], colour, text } of [...boxes].reverse()) { // the surest on top
    const place = [x0 * width, y0 * height, (x1 - x0) * width, (y1 - y0) * height];
    c.strokeStyle = "#0b0c10"; c.lineWidth = 4.5 * scale; c.strokeRect(...place);
    c.strokeStyle = colour; c.lineWidth = 2.5 * scale; c.strokeRect(...place);
    const wide = c.measureText(text).width + 10 * scale, high = 20 * scale;
    const top = place[1] >= high ? place[1] - high : place[1], left = Math.max(0, Math.min(place[0], width - wide));
    c.fillStyle = colour; c.fillRect(left, top, wide, high);
    const [r, g, b] = colour.match(/\d+/g).map(Number);
    c.fillStyle = 0.299 * r + 0.587 * g + 0.114 * b > 130 ? "#1d1f26" : "#ffffff";
    c.fillText(text, left + 5 * scale, top + high / 2);
  }
}
