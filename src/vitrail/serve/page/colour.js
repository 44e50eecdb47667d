// One colour map for every heat: from unlit glass over cobalt and rose to gold. Its lightness rises all the way, so that
// it reads in grey as well.

const STOPS = [
  [0, 10, 10, 26], [0.15, 24, 21, 66], [0.32, 54, 40, 126], [0.48, 116, 52, 140],
  [0.62, 193, 78, 116], [0.76, 233, 118, 82], [0.89, 247, 184, 84], [1, 255, 246, 196],
];

export const HEAT = new Uint8ClampedArray(256 * 3);
for (let v = 0; v < 256; v++) {
  const t = v / 255;
  const next = Math.max(1, STOPS.findIndex(([at]) => at >= t));
  const [a, b] = [STOPS[next - 1], STOPS[next]];
  const part = (t - a[0]) / (b[0] - a[0]);
  for (let c = 0; c < 3; c++) HEAT[3 * v + c] = a[c + 1] + part * (b[c + 1] - a[c + 1]);
}

// The part of the map from `from` to `to`, as a background.
export function gradient(from, to) {
  const stops = Array.from({ length: 9 }, (_, i) => {
    const v = 3 * Math.round(255 * (from + ((to - from) * i) / 8));
    return `rgb(${HEAT[v]} ${HEAT[v + 1]} ${HEAT[v + 2]})`;
  });
  return `linear-gradient(90deg, ${stops.join(", ")})`;
}

// Attention has a few large values and many small ones: along its square root both can be seen. The scale under the
// picture names the middle of the bar, which is then a quarter of its end.
export const shade = (value, top, root) => {
  const share = top > 0 ? Math.max(0, Math.min(1, value / top)) : 0;
  return Math.round(255 * (root ? Math.sqrt(share) : share));
};

// Values 0 … top as pixels [h·w·4]. With `clear`, what is low lets more of the picture through.
export function heatPixels(values, top, root = false, clear = 0) {
  const pixels = new Uint8ClampedArray(values.length * 4);
  for (let i = 0; i < values.length; i++) {
    const t = shade(values[i], top, root), v = 3 * t;
    pixels[4 * i] = HEAT[v]; pixels[4 * i + 1] = HEAT[v + 1]; pixels[4 * i + 2] = HEAT[v + 2];
    pixels[4 * i + 3] = 255 * (1 - clear * (1 - t / 255));
  }
  return pixels;
}

export function rgbPixels(bytes) {
  const pixels = new Uint8ClampedArray((bytes.length / 3) * 4);
  for (let i = 0, j = 0; i < bytes.length; i += 3, j += 4) {
    pixels[j] = bytes[i]; pixels[j + 1] = bytes[i + 1]; pixels[j + 2] = bytes[i + 2]; pixels[j + 3] = 255;
  }
  return pixels;
}

// A canvas of exactly these pixels.
export function bitmap(pixels, width, height, canvas = document.createElement("canvas")) {
  canvas.width = width; canvas.height = height;
  canvas.getContext("2d").putImageData(new ImageData(pixels, width, height), 0, 0);
  return canvas;
}

export const largest = (values) => values.reduce((a, b) => Math.max(a, b), 0);

// Heads keep their colour over a plot: the pieces of the window, from cold to warm.
export function headColour(head, heads) {
  const glass = ["#3f62c4", "#e0ac4a", "#b5475a", "#5aa08c", "#8b62c9", "#8da8e6", "#d9824a", "#2b4499"];
  if (heads <= glass.length) return glass[head];
  return `hsl(${(222 + (300 * head) / heads) % 360} 52% 55%)`;
}
