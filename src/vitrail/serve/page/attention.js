// The attention of all layers and heads as it was sent, one byte per value, and the rows that are read from it.
//
// A layer is [windows, heads, n, n] with the place of each token of a window: 0, 1, … for patches row by row, -1, -2, …
// for the tokens in front of them, and -1000 for padding. A ViT has one window.

const SQUARE = Float32Array.from({ length: 256 }, (_, v) => (v * v) / 65025); // the byte is 255·√(a / largest of the row)

export class Attention {
  constructor(grids, heads, front, body) {
    this.grids = grids; this.heads = heads; this.front = front;
    this.body = body; this.asked = new Set(); // the question that it answers, and the layers that are on their way
    this.layers = new Map();
    this.means = new Map();
  }

  add(arrays) {
    for (const name of Object.keys(arrays)) {
      if (!name.startsWith("map/")) continue;
      const layer = Number(name.slice(4));
      const { shape: [windows, heads, n], data: map } = arrays[name];
      const top = arrays[`top/${layer}`].data, place = arrays[`place/${layer}`].data;
      const where = new Map(); // place -> its token, counted over the windows
      place.forEach((p, token) => { if (p > -1000) where.set(p, token); });
      this.layers.set(layer, { windows, heads, n, map, top, place, where });
    }
  }

  has(layer) { return this.layers.has(layer); }

  // What a token (a place, or "mean" of all patches) attends to: values on the layer's grid, and what the tokens in
  // front get. `head` null is the mean of the heads.
  row(layer, head, token) {
    const [h, w] = this.grids[layer];
    if (token === "mean") return this.mean(layer, head);
    const values = new Float32Array(h * w), front = new Float32Array(this.front);
    const one = this.layers.get(layer);
    const at = one?.where.get(token);
    if (at === undefined) return { values, front };
    this.collect(one, head, at, values, front, 1);
    return { values, front };
  }

  collect({ heads, n, map, top, place }, head, at, values, front, weight) {
    const window = Math.floor(at / n), first = head ?? 0, last = head ?? heads - 1;
    for (let k = first; k <= last; k++) {
      const line = (window * heads + k) * n + (at % n);
      const scale = (top[line] * weight) / (last - first + 1);
      for (let j = 0, from = line * n, to = window * n; j < n; j++, from++, to++) {
        const p = place[to];
        if (p >= 0) values[p] += scale * SQUARE[map[from]];
        else if (p > -1000) front[-1 - p] += scale * SQUARE[map[from]];
      }
    }
  }

  mean(layer, head) {
    const key = `${layer}/${head}`;
    if (!this.means.has(key)) {
      const [h, w] = this.grids[layer], one = this.layers.get(layer);
      const values = new Float32Array(h * w), front = new Float32Array(this.front);
      if (!one) return { values, front };
      for (let p = 0; p < h * w; p++) this.collect(one, head, one.where.get(p), values, front, 1 / (h * w));
      this.means.set(key, { values, front });
    }
    return this.means.get(key);
  }
}

// Where a query lies on a layer's grid: queries are kept as fractions of the picture, so that they mean the same place
// in every stage of a Swin, at every input size, and in the picture beside it.
export function placed(query, [h, w]) {
  if (query.kind === "patch") {
    const row = Math.min(h - 1, Math.floor(query.y * h)), column = Math.min(w - 1, Math.floor(query.x * w));
    return row * w + column;
  }
  return query.kind === "mean" ? "mean" : -1 - query.index;
}
