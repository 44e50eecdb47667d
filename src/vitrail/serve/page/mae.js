// A masked autoencoder at work: the picture, what its encoder sees of it, and what its decoder makes of that.

import { arrays } from "./api.js";
import { bitmap, rgbPixels } from "./colour.js";

export class Painter {
  constructor(section, model, { asked, kept, failed }) {
    this.section = section; this.model = model; this.asked = asked; this.kept = kept; this.failed = failed;
    this.find = (id) => section.querySelector(`#${id}`);
    this.seed = 0; this.mask = null;
    this.ratio = this.find("ratio");
    this.ratio.value = Math.round(100 * (model.mask_ratio ?? 0.75));
    this.ratio.addEventListener("input", () => { this.mask = null; this.paint(); });
    this.find("again").addEventListener("click", () => { this.seed += 1; this.mask = null; this.paint(); });
    this.find("mae-masked").addEventListener("click", (event) => this.toggle(event));
    this.find("mae-note").textContent = `${model.name} was trained to paint what it does not see. Click patches of the middle picture to hide or show them.${model.norm_pix ? " It paints shapes: brightness and contrast of each patch are borrowed from the true one." : ""}`;
    section.hidden = false;
  }

  toggle(event) {
    if (!this.shown) return;
    const box = event.currentTarget.getBoundingClientRect(), [h, w] = this.shown.grid;
    const patch = Math.floor(((event.clientY - box.top) / box.height) * h) * w + Math.floor(((event.clientX - box.left) / box.width) * w);
    const mask = new Set(this.mask ?? this.shown.mask);
    if (!mask.delete(patch)) mask.add(patch);
    this.mask = [...mask];
    this.paint();
  }

  // Only the newest question is worth an answer: while one is out, the next waits and replaces the one before.
  async paint() {
    this.say();
    if (this.busy) { this.again = true; return; }
    this.busy = true;
    do {
      this.again = false;
      const asked = this.asked(this.model.number);
      if (!asked) break;
      try {
        const body = { ...asked, hidden: [], ratio: Math.min(0.95, this.ratio.value / 100), seed: this.seed, mask: this.mask };
        const { about, arrays: found } = await this.kept(() => arrays("paint", body));
        for (const name of ["original", "masked", "painted"]) {
          const { data, shape: [h, w] } = found[name];
          bitmap(rgbPixels(data), w, h, this.find(`mae-${name}`));
        }
        const mask = [];
        found.mask.data.forEach((v, i) => { if (v) mask.push(i); });
        this.shown = { grid: about.grid, mask };
        this.say();
      } catch (error) { this.failed(error); break; }
    } while (this.again);
    this.busy = false;
  }

  say() {
    this.ratio.style.setProperty("--part", `${(100 * this.ratio.value) / this.ratio.max}%`);
    this.find("ratio-out").textContent = this.mask ? "by hand" : `${this.ratio.value}\u202f%`;
    if (this.shown) {
      const [h, w] = this.shown.grid;
      this.find("mae-seen").textContent = `what the encoder sees: ${h * w - this.shown.mask.length} of ${h * w} patches`;
    }
  }
}
