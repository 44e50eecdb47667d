// Every head of every block at once, for the token that is being asked about: blocks across, heads down.

import { HEAT, largest, shade } from "./colour.js";

const GAP = 1;
const TALLEST = 400; // Swin has 24 heads in its last stage

export class HeadGrid {
  constructor(canvas, choose) {
    this.canvas = canvas;
    canvas.addEventListener("click", (event) => {
      const found = this.under(event);
      if (found) choose(found.layer, found.head);
    });
    canvas.addEventListener("pointermove", (event) => {
      const found = this.under(event);
      canvas.title = found ? `block ${found.layer + 1}, head ${found.head + 1}` : "";
    });
  }

  under(event) {
    if (!this.size) return null;
    const box = this.canvas.getBoundingClientRect();
    const { columns, rows } = this.size;
    const layer = Math.floor(((event.clientX - box.left) / box.width) * columns);
    const head = Math.floor(((event.clientY - box.top) / box.height) * rows);
    return layer >= 0 && layer < columns && head >= 0 && head < (this.heads?.[layer] ?? 0) ? { layer, head } : null;
  }

  // `row(layer, head)` gives values on the layer's grid, or null where that layer has not arrived.
  draw({ grids, heads, row, layer: nowLayer, head: nowHead, accent }) {
    const scale = window.devicePixelRatio || 1;
    const columns = grids.length, rows = Math.max(...heads);
    const width = Math.round(this.canvas.parentElement.clientWidth * scale);
    if (!width) return;
    const shape = Math.max(...grids.map(([h, w]) => h / w));
    const cell = Math.max(6, Math.floor(Math.min(width / columns, (TALLEST * scale) / rows / shape)));
    const tall = Math.max(6, Math.round(cell * shape));
    this.heads = heads; this.size = { columns, rows };
    if (this.canvas.width !== cell * columns || this.canvas.height !== tall * rows) {
      this.canvas.width = cell * columns; this.canvas.height = tall * rows;
      this.canvas.style.width = `${(cell * columns) / scale}px`;
      this.image = null;
    }
    const c = this.canvas.getContext("2d");
    this.image ??= new ImageData(this.canvas.width, this.canvas.height);
    const pixels = this.image.data, stride = this.canvas.width;
    pixels.fill(0);
    const inner = cell - GAP - 1, innerTall = tall - GAP - 1;
    for (let layer = 0; layer < columns; layer++) {
      const [h, w] = grids[layer];
      for (let head = 0; head < heads[layer]; head++) {
        const values = row(layer, head);
        if (!values) continue;
        const top = largest(values), shades = Uint8Array.from(values, (v) => shade(v, top, true));
        for (let y = 0; y < innerTall; y++) {
          const from = Math.floor((y * h) / innerTall) * w;
          let to = 4 * ((head * tall + y) * stride + layer * cell);
          for (let x = 0; x < inner; x++, to += 4) {
            const v = 3 * shades[from + Math.floor((x * w) / inner)];
            pixels[to] = HEAT[v]; pixels[to + 1] = HEAT[v + 1]; pixels[to + 2] = HEAT[v + 2]; pixels[to + 3] = 255;
          }
        }
      }
    }
    c.putImageData(this.image, 0, 0);
    c.strokeStyle = accent; c.lineWidth = 2 * scale;
    const first = nowHead ?? 0, count = nowHead === null ? heads[nowLayer] : 1;
    c.strokeRect(nowLayer * cell + scale, first * tall + scale, cell - 2 * scale - GAP, tall * count - 2 * scale - GAP);
  }
}
