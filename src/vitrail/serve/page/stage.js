// The picture with what lies over it: one canvas, drawn at most once per frame.

import { bitmap, heatPixels, rgbPixels } from "./colour.js";
import { paintBoxes } from "./said.js";

export class Stage {
  constructor(canvas, handlers) {
    this.canvas = canvas;
    this.handlers = handlers; // look(y, x, time), hide(y, x, on), left(), key(event)
    this.context = canvas.getContext("2d");
    this.layer = document.createElement("canvas"); // the overlay, one pixel per patch
    this.picture = null; this.sharp = null; this.overlay = null; this.hidden = new Set();
    this.grid = [1, 1]; this.hideGrid = [1, 1]; this.query = null;
    this.opacity = 0.7; this.lines = true; this.smooth = false; this.pixels = false; this.tapHides = false;
    this.mean = "rgb(124 116 104)";
    this.drawn = null; // called after the next drawing
    this.listen();
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  setPicture(picture, sharp, mean) {
    this.picture = picture; this.sharp = sharp; this.mean = mean;
    this.greys = new Map();
    this.canvas.style.aspectRatio = `${picture.width} / ${picture.height}`;
    this.canvas.closest(".seen").style.setProperty("--shape", picture.width / picture.height);
  }

  // {grid, values, top} for a heat, {grid, colours} for colours, {grid, pixels, boxes} for what is said, null for the
  // bare picture.
  setOverlay(overlay) {
    this.overlay = overlay;
    if (!overlay) return;
    const [h, w] = overlay.grid;
    const pixels = overlay.pixels ?? (overlay.colours ? rgbPixels(overlay.colours) : heatPixels(overlay.values, overlay.top, overlay.root, 0.4));
    bitmap(pixels, w, h, this.layer);
  }

  draw() {
    this.pending ??= requestAnimationFrame(() => { this.pending = undefined; this.paint(); });
  }

  paint() {
    const { canvas, context: c } = this;
    if (!this.picture) return;
    const scale = window.devicePixelRatio || 1;
    const width = Math.round(canvas.clientWidth * scale), height = Math.round((width * this.picture.height) / this.picture.width);
    if (!width) return;
    if (canvas.width !== width || canvas.height !== height) { canvas.width = width; canvas.height = height; }
    this.compose(c, width, height, scale);
    this.drawn?.();
  }

  // Also what is saved as a PNG, at any size.
  compose(c, width, height, scale) {
    const plain = this.pixels || !this.sharp;
    c.imageSmoothingEnabled = !this.pixels;
    c.imageSmoothingQuality = "high";
    c.globalAlpha = 1;
    const picture = plain ? this.picture : this.sharp;
    c.drawImage(picture, 0, 0, width, height);
    if (this.overlay?.values || this.overlay?.covers) { // a heat is read by its colours, so those of the picture step back
      c.globalAlpha = Math.min(1, 1.15 * this.opacity);
      c.drawImage(this.grey(picture), 0, 0, width, height);
      c.globalAlpha = 1;
    }
    this.paintHidden(c, width, height);
    if (this.overlay && this.opacity > 0) {
      c.globalAlpha = this.opacity;
      c.imageSmoothingEnabled = this.smooth;
      c.drawImage(this.layer, 0, 0, width, height);
      c.globalAlpha = 1;
    }
    const [h, w] = this.overlay?.grid ?? this.grid;
    if (this.lines && !this.overlay?.pixels) this.paintLines(c, width, height, h, w, scale);
    this.paintCrosses(c, width, height, scale);
    if (this.overlay?.boxes) paintBoxes(c, this.overlay.boxes, width, height, scale);
    if (this.query !== null && this.query >= 0) {
      const [gh, gw] = this.grid, row = Math.floor(this.query / gw), column = this.query % gw;
      const box = [(column * width) / gw, (row * height) / gh, width / gw, height / gh];
      c.lineJoin = "miter";
      c.strokeStyle = "#0b0c10"; c.lineWidth = 5 * scale; c.strokeRect(...box);
      c.strokeStyle = "#ffffff"; c.lineWidth = 2.5 * scale; c.strokeRect(...box);
    }
  }

  grey(picture) {
    if (!this.greys.has(picture)) {
      const canvas = document.createElement("canvas"), c = canvas.getContext("2d");
      canvas.width = picture.width; canvas.height = picture.height;
      c.drawImage(picture, 0, 0);
      c.globalCompositeOperation = "saturation";
      c.fillRect(0, 0, canvas.width, canvas.height);
      this.greys.set(picture, canvas);
    }
    return this.greys.get(picture);
  }

  paintLines(c, width, height, h, w, scale) {
    const cell = Math.min(width / w, height / h) / scale;
    if (cell < 4) return; // finer than glass can be cut
    c.strokeStyle = this.overlay?.colours ? "rgb(11 12 16 / .8)" : "rgb(11 12 16 / .42)";
    c.lineWidth = Math.max(1, Math.min(cell / 16, this.overlay?.colours ? 2.4 : 1.4)) * scale;
    c.beginPath();
    for (let i = 1; i < h; i++) { c.moveTo(0, (i * height) / h); c.lineTo(width, (i * height) / h); }
    for (let j = 1; j < w; j++) { c.moveTo((j * width) / w, 0); c.lineTo((j * width) / w, height); }
    c.stroke();
  }

  boxes(width, height) {
    const [h, w] = this.hideGrid;
    return [...this.hidden].map((i) => [((i % w) * width) / w, (Math.floor(i / w) * height) / h, width / w, height / h]);
  }

  paintHidden(c, width, height) {
    c.fillStyle = this.mean;
    for (const box of this.boxes(width, height)) c.fillRect(...box);
  }

  paintCrosses(c, width, height, scale) {
    c.strokeStyle = "rgb(255 255 255 / .8)"; c.lineWidth = 1.2 * scale;
    c.beginPath();
    for (const [x, y, w, h] of this.boxes(width, height)) {
      c.moveTo(x + w * 0.3, y + h * 0.3); c.lineTo(x + w * 0.7, y + h * 0.7);
      c.moveTo(x + w * 0.7, y + h * 0.3); c.lineTo(x + w * 0.3, y + h * 0.7);
    }
    c.stroke();
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const inside = (v) => Math.max(0, Math.min(0.999999, v));
    return [inside((event.clientY - box.top) / box.height), inside((event.clientX - box.left) / box.width)];
  }

  hiddenAt(y, x) {
    const [h, w] = this.hideGrid;
    return Math.floor(y * h) * w + Math.floor(x * w);
  }

  // A mouse looks by hovering and hides by pressing, also along a line. A finger can't hover: it looks, or, where that
  // is switched on, it hides.
  listen() {
    const { canvas } = this;
    let painting = null, before = null;
    // A quick hand skips patches between two events: the line between them is hidden too.
    const paint = ([y, x]) => {
      const [h, w] = this.hideGrid, steps = Math.ceil(2 * Math.max(Math.abs(y - before[0]) * h, Math.abs(x - before[1]) * w)) || 1;
      for (let i = 1; i <= steps; i++) this.handlers.hide(before[0] + ((y - before[0]) * i) / steps, before[1] + ((x - before[1]) * i) / steps, painting);
      before = [y, x];
    };
    const hides = (event) => event.pointerType === "mouse" || this.tapHides;
    canvas.addEventListener("pointermove", (event) => {
      const place = this.at(event);
      if (painting !== null) paint(place);
      if (event.pointerType === "mouse" || event.pressure > 0) this.handlers.look(...place, event.timeStamp);
    });
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      const place = this.at(event);
      if (hides(event)) {
        painting = !this.hidden.has(this.hiddenAt(...place));
        before = place;
        paint(place);
        if (event.pointerType === "mouse") canvas.setPointerCapture(event.pointerId);
      } else this.handlers.look(...place, event.timeStamp);
    });
    for (const end of ["pointerup", "pointercancel", "lostpointercapture"]) canvas.addEventListener(end, () => { painting = null; });
    canvas.addEventListener("pointerleave", () => this.handlers.left());
    canvas.addEventListener("keydown", (event) => this.handlers.key(event));
  }
}
