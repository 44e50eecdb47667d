// From pixels to a class: each stage as a small picture made of its tensor, with the tensor's shape.

import { bitmap, heatPixels, rgbPixels } from "./colour.js";

const element = (name, className, text) => {
  const node = document.createElement(name);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
};

export const shapeText = (shape) => `[${shape.join(", ")}]`;

function tile(stage, canvas, label) {
  const figure = element("figure");
  if (stage.shape) {
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", label);
  }
  const caption = element("figcaption");
  caption.append(element("b", "", stage.title), element("code", "", stage.shape ? shapeText(stage.shape) : ""));
  if (stage.note) figure.title = stage.note;
  figure.append(canvas, caption);
  return figure;
}

const item = (operator, figure) => {
  const li = element("li");
  if (operator) li.append(Object.assign(element("span", "operator", operator), { ariaHidden: "true" }));
  li.append(figure);
  return li;
};

const soft = (canvas) => Object.assign(canvas, { className: "soft" });

// Each patch apart from its neighbours, so that one sees what is cut.
function cut(picture, [h, w]) {
  const side = Math.max(3, Math.round(320 / Math.max(h, w))), gap = Math.max(1, Math.round(side / 7));
  const canvas = document.createElement("canvas");
  canvas.width = w * (side + gap) - gap; canvas.height = h * (side + gap) - gap;
  soft(canvas);
  const c = canvas.getContext("2d");
  c.imageSmoothingQuality = "high";
  for (let i = 0; i < h; i++) for (let j = 0; j < w; j++) {
    c.drawImage(picture, (j * picture.width) / w, (i * picture.height) / h, picture.width / w, picture.height / h, j * (side + gap), i * (side + gap), side, side);
  }
  return canvas;
}

// The tokens, and in front of them, set apart, those that are no patches.
function withFront(colours, [h, w], front) {
  const side = 6, canvas = document.createElement("canvas");
  const lead = front ? side + 4 : 0;
  canvas.width = w * side + lead; canvas.height = h * side;
  const c = canvas.getContext("2d");
  c.imageSmoothingEnabled = false;
  c.drawImage(bitmap(rgbPixels(colours), w, h), lead, 0, w * side, h * side);
  c.fillStyle = "#e0ac4a";
  for (let i = 0; i < Math.min(front, h); i++) c.fillRect(0, i * (side + 2), side, side);
  return canvas;
}

// A vector as a barcode of its values, from the lowest to the highest.
function barcode({ data }) {
  const columns = Math.ceil(Math.sqrt(data.length / 4)), rows = Math.ceil(data.length / columns);
  const low = Math.min(...data), values = new Float32Array(columns * rows);
  data.forEach((v, i) => { values[i] = v - low; });
  return bitmap(heatPixels(values, Math.max(...values)), columns, rows);
}

const SIZES = [[96, 34, 190], [92, 28, 180], [86, 24, 170], [80, 20, 160], [72, 17, 150], [64, 15, 140]]; // tile, operator, answer

export class Strip {
  constructor(list, chooseLayer) {
    this.list = list; this.chooseLayer = chooseLayer;
  }

  draw(look, picture, front, layer) {
    const { about, arrays } = look;
    const items = [];
    let blocks = null;
    about.stages.forEach((stage, number) => {
      const colours = arrays[`colours/${number}`], table = arrays[`table/${number}`];
      const coloured = (array) => bitmap(rgbPixels(array.data), array.shape[1], array.shape[0]);
      const label = `${stage.title}, shape ${shapeText(stage.shape)}. ${stage.note}`;
      if (stage.key === "image") items.push(item("", tile(stage, soft(bitmap(rgbPixels(arrays.picture.data), picture.width, picture.height)), label)));
      else if (stage.key === "patches") items.push(item("→", tile(stage, cut(picture, about.first), label)));
      else if (stage.key === "stem" || stage.key === "embeddings") items.push(item("→", tile(stage, coloured(colours), label)));
      else if (stage.key === "positions") {
        if (table) items.push(item("+", tile({ ...stage, title: "positions", shape: stage.shape.with(1, stage.shape[1] - front) }, coloured(table), label)));
        else items.push(item("+", tile({ ...stage, title: "positions", shape: null }, element("div", "words", stage.note), label)));
        if (colours) items.push(item("=", tile({ ...stage, title: "tokens", note: "" }, withFront(colours.data, colours.shape, front), label)));
      } else if (stage.key === "block") {
        if (!blocks) {
          blocks = element("div", "blocks");
          const count = about.stages.filter((s) => s.key === "block").length;
          const caption = element("figcaption");
          this.blockShape = element("code");
          caption.append(element("b", "", `${count} blocks`), this.blockShape);
          const figure = element("figure");
          figure.append(blocks, caption);
          items.push(item("→", figure));
          this.shapes = [];
        }
        const number = this.shapes.length, button = element("button");
        this.shapes.push(stage.shape);
        button.type = "button";
        button.title = `after block ${number + 1}: ${shapeText(stage.shape)}`;
        button.setAttribute("aria-label", `Block ${number + 1}, shape ${shapeText(stage.shape)}`);
        button.append(Object.assign(coloured(colours), { ariaHidden: "true" }), element("span", "", number + 1));
        button.addEventListener("click", () => this.chooseLayer(number));
        blocks.append(button);
      } else if (stage.key === "class") items.push(item("→", tile(stage, barcode(arrays.pooled), label)));
    });
    if (about.classes.length) items.push(item("→", this.answer(about)));
    this.list.replaceChildren(...items);
    this.blocks = blocks;
    this.mark(layer);
    this.fit();
  }

  // As large as all of it fits; where it can't, as on a phone, it is scrolled at its usual size.
  fit() {
    const { style } = this.list, names = ["--tile", "--between", "--answer"];
    for (const sizes of SIZES) {
      names.forEach((name, i) => style.setProperty(name, `${sizes[i]}px`));
      if (this.list.scrollWidth <= this.list.clientWidth) return;
    }
    for (const name of names) style.removeProperty(name);
  }

  answer(about) {
    const figure = element("figure"), bars = element("div", "answer-bars"), caption = element("figcaption");
    for (const found of about.classes.slice(0, 4)) {
      const line = element("div"), bar = element("i");
      bar.style.width = `${100 * found.probability}%`;
      line.append(bar, element("span", "", found.label), element("b", "", told(found)));
      bars.append(line);
    }
    caption.append(element("b", "", "classes"), element("code", "", shapeText([1, about.labels])));
    figure.append(bars, caption);
    return figure;
  }

  mark(layer) {
    if (!this.blocks) return;
    [...this.blocks.children].forEach((button, i) => button.setAttribute("aria-pressed", String(i === layer)));
    this.blockShape.textContent = shapeText(this.shapes[Math.min(layer, this.shapes.length - 1)]);
  }
}

// An answer: a probability, or a number in its own units.
export const told = (found) => found.text ?? percent(found.probability);
export const percent = (p) => (p >= 0.9995 ? "100 %" : p >= 0.1 ? `${(100 * p).toFixed(1)} %` : p >= 0.0005 ? `${(100 * p).toFixed(p >= 0.01 ? 1 : 2)} %` : "< 0.1 %").replace(" ", "\u202f");
