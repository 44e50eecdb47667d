// One picture through one model: what was fetched for it, and its part of the page.

import { Refused, arrays, ask, sample, upload } from "./api.js";
import { Attention, placed } from "./attention.js";
import { bitmap, largest, rgbPixels } from "./colour.js";
import { Classes } from "./classes.js";
import { Said } from "./said.js";
import { Stage } from "./stage.js";

export const clamp = (v, low, high) => Math.max(low, Math.min(high, v));

export class Pane {
  constructor(shared) {
    this.shared = shared; // {models, view, changed(pane), looked(y, x, time, pane), failed(error), key(event, pane), ready(pane), active(pane)}
    this.root = document.querySelector("#pane").content.firstElementChild.cloneNode(true);
    const find = (selector) => this.root.querySelector(selector);
    this.readout = find(".readout"); this.waitingMark = find(".waiting"); this.scale = find(".scale");
    this.number = 0; this.picture = null; this.hidden = new Set(); this.target = null; this.turn = 0;
    this.overlays = new Map(); this.units = new Map();
    this.stage = new Stage(find("canvas"), {
      look: (y, x, time) => shared.looked(y, x, time, this),
      hide: (y, x, on) => this.hide(y, x, on),
      left: () => shared.left(),
      key: (event) => shared.key(event, this),
    });
    this.classes = new Classes(find(".best"), find(".classes"), (index) => {
      this.target = this.target === index ? null : index;
      this.classes.mark(this.target);
      if (this.target !== null && !["relevance", "grad_cam"].includes(shared.view.overlay)) shared.show("relevance");
      shared.changed(this);
    });
    this.best = find(".best"); this.list = find(".classes");
    this.select = find("select");
    shared.models.forEach((model, i) => this.select.append(new Option(model.name, i)));
    find(".model").hidden = shared.models.length < 2;
    this.select.addEventListener("change", () => { this.use(Number(this.select.value)); });
    find(".hidden-note button").addEventListener("click", () => this.showAll());
    this.fact = find(".fact"); this.note = find(".hidden-note"); this.samples = find(".samples");
    this.root.addEventListener("pointerenter", () => shared.active(this));
    this.root.addEventListener("focusin", () => shared.active(this));
  }

  // Does the model say more than one class of a picture: masks, or boxes?
  get dense() { return this.model.overlay !== null; }

  get model() { return this.shared.models[this.number]; }

  layer() { return clamp(this.shared.view.layer, 0, this.model.heads.length - 1); }

  head() {
    const { head } = this.shared.view;
    return head === null ? null : clamp(head, 0, this.model.heads[this.layer()] - 1);
  }

  size() {
    const { sizes, size } = this.model, wanted = this.shared.view.size ?? size;
    return sizes.reduce((best, s) => (Math.abs(s - wanted) < Math.abs(best - wanted) ? s : best));
  }

  asked(model = this.number) {
    if (!this.picture) return null;
    return { picture: this.picture.id, model, size: this.size(), fit: this.shared.view.fit, hidden: [...this.hidden], also: this.also ?? [] };
  }

  use(number) {
    this.number = number; this.select.value = number; this.target = null; this.also = null; this.said = null;
    this.hidden.clear();
    if (this.picture) this.refresh(); else this.shared.changed(this);
  }

  // A File or Blob, or {sample: number}.
  async show(source, name) {
    const started = performance.now();
    const turn = ++this.turn;
    this.wait(true);
    try {
      const found = source.sample === undefined ? await upload(source) : await sample(source.sample);
      if (turn !== this.turn) return false;
      this.picture = { id: found.picture, width: found.width, height: found.height, source, name };
    } catch (error) {
      if (turn === this.turn) { this.wait(false); this.shared.failed(error); }
      return false;
    }
    this.hidden.clear(); this.target = null; this.also = null; this.said = null;
    await this.refresh(started);
    return true;
  }

  // The server forgets pictures when there are many: then the page, which still has it, sends it again.
  async kept(question) {
    try {
      return await question();
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 410) throw error;
      // Several questions may meet this at once: one of them sends it, and all wait.
      const { source } = this.picture;
      this.sending ??= (source.sample === undefined ? upload(source) : sample(source.sample)).finally(() => { this.sending = null; });
      await this.sending;
      return question();
    }
  }

  async refresh(started = performance.now()) {
    const turn = ++this.turn;
    this.cancel?.abort();
    const { signal } = (this.cancel = new AbortController());
    const body = this.asked(), current = () => turn === this.turn;
    this.wait(true);
    try {
      const look = await this.kept(() => arrays("look", body, signal));
      const { data, shape: [h, w] } = look.arrays.picture;
      const sharp = await createImageBitmap(new Blob([look.arrays.sharp.data], { type: "image/jpeg" }));
      if (!current()) return;
      this.look = look; this.body = body; // what is asked later about this look is asked of the same hidden patches
      this.overlays = new Map(); this.units = new Map();
      this.stage.setPicture(bitmap(rgbPixels(data), w, h), sharp, `rgb(${look.about.mean.join(" ")})`);
      this.stage.hideGrid = look.about.grid; this.stage.hidden = new Set(this.hidden);
      this.size0 = [h, w];
      this.stage.canvas.setAttribute("aria-label", `${this.picture.name || "The picture"} as ${look.about.grid.join(" by ")} patches. Arrow keys choose a patch to look from, space hides it.`);
      if (!this.hidden.size) this.also = look.about.classes.slice(0, 5).map((c) => c.index);
      this.classes.draw(look.about.classes, this.hidden.size > 0, look.about.multi_label);
      this.classes.mark(this.target);
      this.said?.list(this.best, this.list); // until the new one is here
      this.facts();
      this.shared.changed(this, "look");

      const attention = new Attention(look.about.grids, this.model.heads, this.model.prefix.length, body);
      const layers = look.about.at_once ? null : [this.layer()];
      const parts = [
        this.kept(() => arrays("attention", { ...body, layers }, signal)).then((found) => {
          attention.add(found.arrays);
          if (current()) { this.attention = attention; this.shared.changed(this, "attention"); }
        }),
        ...(this.dense ? ["rollout"] : ["relevance", "rollout"]).map((name) => this.fetchOverlay(name, null, body, signal)),
        ...(this.dense ? [this.fetchSaid(body, signal, current)] : []),
        this.kept(() => ask("spreads", body, signal)).then((found) => { if (current()) { this.spreads = found; this.shared.changed(this, "spreads"); } }),
        this.kept(() => arrays("positions", body, signal)).then((found) => { if (current()) { this.positions = found; this.shared.changed(this, "positions"); } }),
      ];
      if (this.attention) { this.attention = this.sameGrids(attention) ? this.attention : null; }
      await Promise.all(parts);
      if (!current()) return;
      this.wait(false);
      requestAnimationFrame(() => {
        performance.clearMeasures("drawn");
        performance.measure("drawn", { start: started, end: performance.now() });
        this.shared.ready(this);
      });
    } catch (error) {
      if (error.name === "AbortError" || !current()) return;
      this.wait(false);
      this.shared.failed(error);
    }
  }

  sameGrids(attention) { return JSON.stringify(attention.grids) === JSON.stringify(this.attention.grids); }

  async fetchOverlay(name, target, body = this.body, signal = this.cancel?.signal) {
    const key = `${name}/${target}`, { overlays } = this;
    if (overlays.has(key)) return;
    overlays.set(key, null);
    try {
      const { about: { error }, arrays: { overlay } } = await this.kept(() => arrays("overlay", { ...body, name, target }, signal));
      overlays.set(key, error ? { error } : { grid: overlay.shape, values: overlay.data, top: largest(overlay.data), root: true });
    } catch (error) {
      if (error.name === "AbortError") { overlays.delete(key); throw error; }
      overlays.set(key, { error: error.message });
    }
    if (overlays === this.overlays) this.shared.changed(this, "overlay");
  }

  async fetchSaid(body, signal, current) {
    const found = await this.kept(() => arrays("said", body, signal));
    if (!current()) return;
    this.said = new Said(found, this.model.overlay);
    this.said.list(this.best, this.list);
    this.shared.changed(this, "overlay");
  }

  async fetchLayer(layer) {
    const { attention } = this, { signal } = this.cancel;
    if (attention.asked.has(layer)) return;
    attention.asked.add(layer);
    try {
      attention.add((await this.kept(() => arrays("attention", { ...attention.body, layers: [layer] }, signal))).arrays);
      if (attention === this.attention) this.shared.changed(this, "attention");
    } catch (error) { if (error.name !== "AbortError") this.shared.failed(error); }
    attention.asked.delete(layer);
  }

  async fetchUnits(layer) {
    const { units, body } = this, { signal } = this.cancel;
    if (units.has(layer)) return;
    units.set(layer, null);
    try {
      units.set(layer, (await this.kept(() => arrays("tokens", { ...body, layers: [layer] }, signal))).arrays[`units/${layer}`]);
      if (units === this.units) this.shared.changed(this, "overlay");
    } catch (error) { units.delete(layer); if (error.name !== "AbortError") this.shared.failed(error); }
  }

  // What lies over the picture now: {grid, values, top} or {grid, colours}, with words for its scale; null for nothing,
  // {error} or {pending} where there is nothing yet.
  overlay() {
    const { view } = this.shared, layer = this.layer(), grid = this.look.about.grids[layer];
    if (view.overlay === "none" || (view.overlay === "said" && !this.dense)) return null;
    if (view.overlay === "said") return this.said?.overlay() ?? { pending: true };
    if (view.overlay === "attention") {
      if (!this.attention) return { pending: true };
      if (!this.attention.has(layer)) { this.fetchLayer(layer); return { pending: true }; }
      const { values, front } = this.attention.row(layer, this.head(), placed(this.query(), grid));
      return { grid, values, front, top: largest(values), root: true };
    }
    if (view.overlay === "colours") {
      const first = this.look.about.stages.findIndex((stage) => stage.key === "block");
      return { grid, colours: this.look.arrays[`colours/${first + layer}`].data };
    }
    if (view.overlay === "similar") return this.similar(layer, grid);
    const target = view.overlay === "rollout" ? null : this.target;
    const found = this.overlays.get(`${view.overlay}/${target}`);
    if (!found) { this.fetchOverlay(view.overlay, target).catch(() => {}); return { pending: true }; }
    return found;
  }

  similar(layer, grid) {
    const units = this.units.get(layer);
    if (!units) { this.fetchUnits(layer); return { pending: true }; }
    const { data, shape: [n, d] } = units;
    const query = this.query(), patch = query.kind === "patch" ? placed(query, grid) : Math.floor(grid[0] / 2) * grid[1] + Math.floor(grid[1] / 2);
    const cosines = new Float32Array(n);
    let low = 1;
    for (let i = 0; i < n; i++) {
      let sum = 0;
      for (let k = 0, a = patch * d, b = i * d; k < d; k++) sum += data[a + k] * data[b + k];
      cosines[i] = Math.min(1, sum / 16129);
      low = Math.min(low, cosines[i]);
    }
    return { grid, values: cosines.map((v) => v - low), top: 1 - low, low, high: 1, patch };
  }

  // The class token where there is one; a model without sees with all its patches.
  query() {
    const { query } = this.shared.view;
    if (query.kind === "front" && query.index >= this.model.prefix.length) return { kind: "mean" };
    return query;
  }

  hide(y, x, on) {
    const patch = this.stage.hiddenAt(y, x);
    if (this.hidden.has(patch) === on) return;
    if (on) this.hidden.add(patch); else this.hidden.delete(patch);
    this.changeHidden();
  }

  showAll() {
    if (!this.hidden.size) return;
    this.hidden.clear();
    this.changeHidden();
  }

  // The answer at once, everything else when the hand rests.
  changeHidden() {
    this.stage.hidden = new Set(this.hidden);
    this.facts();
    this.wait(true);
    this.shared.changed(this, "hidden");
    if (this.look.about.classes.length) this.classesSoon();
    clearTimeout(this.resting);
    this.resting = setTimeout(() => this.refresh(), 350);
  }

  async classesSoon() {
    if (this.askingClasses) { this.askAgain = true; return; }
    this.askingClasses = true;
    do {
      this.askAgain = false;
      try {
        const { classes } = await this.kept(() => ask("classes", this.asked()));
        this.classes.draw(classes, this.hidden.size > 0, this.look.about.multi_label);
        this.classes.mark(this.target);
        this.shared.answered(this, classes);
      } catch (error) { this.shared.failed(error); break; }
    } while (this.askAgain);
    this.askingClasses = false;
  }

  facts() {
    const { picture, look } = this, [h, w] = look.about.grid, [height, width] = this.size0;
    this.fact.textContent = `${picture.name ? `${picture.name}, ` : ""}${picture.width}×${picture.height} → ${width}×${height} pixels → ${w}×${h} = ${w * h} ${this.model.family === "SwinTransformer" ? "tokens in the last stage" : "patches"}`;
    this.note.hidden = !this.hidden.size;
    this.note.firstElementChild.textContent = this.hiddenWords();
  }

  hiddenWords() {
    const { size } = this.hidden;
    return size ? `${size} ${size === 1 ? "patch" : "patches"} hidden (set to the mean colour).` : "";
  }

  wait(on) {
    this.waitingMark.hidden = !on;
    if (on) document.documentElement.dataset.state = "busy";
  }
}
