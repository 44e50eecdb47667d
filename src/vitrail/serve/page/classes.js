// The likeliest classes. Rows keep their order while patches are hidden, so that one sees each bar move; classes that
// come up among the likeliest join below.

import { told } from "./strip.js";

const MOST_NEW = 2;

export class Classes {
  constructor(best, list, choose) {
    this.best = best; this.list = list; this.choose = choose;
    this.before = new Map(); // of the whole picture
    this.rows = new Map();
    this.shown = []; // as in the list: {index, label, probability, text, former, before}
  }

  draw(classes, hidden, several) {
    this.best.hidden = this.list.hidden = !classes.length;
    if (!classes.length) return;
    if (!hidden) { this.before = new Map(classes.map((c) => [c.index, c])); this.order = classes.slice(0, 5).map((c) => c.index); }
    const found = new Map(classes.map((c) => [c.index, c]));
    const newcomers = hidden ? classes.slice(0, 5).map((c) => c.index).filter((i) => !this.order.includes(i)).slice(0, MOST_NEW) : [];
    this.shown = [...this.order, ...newcomers].filter((i) => found.has(i)).map((index) => {
      const before = hidden ? this.before.get(index) : undefined;
      return { ...found.get(index), before, former: before !== undefined ? `${told(before)} →` : hidden ? "came up" : "" };
    });
    this.best.textContent = classes[0].label; // the answer, which a threshold may choose
    this.best.title = several ? "the likeliest of several classes" : "";
    const rows = new Map();
    for (const shown of this.shown) {
      const { index, label, probability, before, former } = shown;
      const row = this.rows.get(index) ?? this.row(index);
      row.label.textContent = label;
      row.value.textContent = told(shown);
      row.bar.style.width = `${100 * probability}%`;
      row.was.style.width = `${100 * (before?.probability ?? 0)}%`;
      row.former.textContent = former;
      row.button.title = `Explain “${label}”`;
      row.button.dataset.index = index;
      row.button.dataset.probability = probability;
      rows.set(index, row);
    }
    this.rows = rows;
    this.list.replaceChildren(...[...rows.values()].map((row) => row.item));
  }

  row(index) {
    const make = (name, className) => Object.assign(document.createElement(name), { className: className ?? "" });
    const item = make("li"), button = make("button"), line = make("span", "line"), label = make("span"), former = make("s"), value = make("b");
    const track = make("span", "bar"), was = make("u"), bar = make("i");
    button.type = "button";
    button.setAttribute("aria-pressed", "false");
    line.append(label, former, value); track.append(was, bar); button.append(line, track); item.append(button);
    button.addEventListener("click", () => this.choose(index));
    return { item, button, label, former, value, bar, was };
  }

  mark(target) {
    for (const [index, row] of this.rows) row.button.setAttribute("aria-pressed", String(index === target));
  }
}
