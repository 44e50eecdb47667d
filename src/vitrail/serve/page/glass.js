// The window of the first screen: an arch of patches, gold at its heart.

const SVG = "http://www.w3.org/2000/svg";
const RINGS = [
  ["#f0c766", "#e0ac4a", "#e9b95c"], ["#d9824a", "#c9566b", "#e0ac4a"], ["#b5475a", "#9b4a86", "#c9566b"],
  ["#5f80d6", "#7b6cc4", "#3f62c4"], ["#3f62c4", "#2b4499", "#5f80d6"], ["#8da8e6", "#3f62c4", "#2b4499"], ["#2b4499", "#24397f", "#3f62c4"],
];

export function drawGlass(place) {
  const columns = 12, rows = 16, side = 30, width = columns * side, height = rows * side;
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `-6 -6 ${width + 12} ${height + 12}`);
  const arch = `M0 ${height}V${width * 0.62}C0 ${width * 0.28} ${width * 0.2} ${width * 0.1} ${width / 2} 0C${width * 0.8} ${width * 0.1} ${width} ${width * 0.28} ${width} ${width * 0.62}V${height}z`;
  const clip = document.createElementNS(SVG, "clipPath");
  clip.id = "window-arch";
  const outline = () => { const path = document.createElementNS(SVG, "path"); path.setAttribute("d", arch); return path; };
  clip.append(outline());
  const group = document.createElementNS(SVG, "g");
  group.setAttribute("clip-path", "url(#window-arch)");
  let seed = 7;
  const random = () => (seed = (seed * 16807) % 2147483647) / 2147483647;
  const chosen = new Map(); // the left half decides; the right half is its mirror image
  for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) {
    const mirrored = Math.min(j, columns - 1 - j), key = `${i}/${mirrored}`;
    const far = Math.hypot((i + 0.5 - 6.4) / 1.15, j + 0.5 - columns / 2);
    const wave = far + 0.55 * Math.cos(4 * Math.atan2(i - 6, mirrored - 5.5));
    if (!chosen.has(key)) chosen.set(key, RINGS[Math.min(RINGS.length - 1, Math.max(0, Math.floor(wave * 0.98)))][Math.floor(random() * 3)]);
    const piece = document.createElementNS(SVG, "rect");
    for (const [name, value] of Object.entries({ x: j * side, y: i * side, width: side, height: side, fill: chosen.get(key), class: "pane-of-glass" })) piece.setAttribute(name, value);
    group.append(piece);
  }
  const frame = outline();
  frame.setAttribute("class", "frame");
  svg.append(clip, group, frame);
  place.replaceChildren(svg);
}
