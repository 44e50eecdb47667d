// What is on the screen as one PNG: the picture with its overlay, what it is, and the answer.

import { percent } from "./strip.js";

const PICTURE = 900, SIDE = 520, MARGIN = 48;

export async function savePicture(panes, heads, words) {
  const style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue(name).trim();
  const tall = Math.max(...panes.map((pane) => (PICTURE * pane.stage.picture.height) / pane.stage.picture.width));
  const canvas = document.createElement("canvas");
  const column = PICTURE + (panes.length > 1 ? MARGIN : SIDE + MARGIN);
  canvas.width = MARGIN + column * panes.length;
  canvas.height = Math.round(tall) + 2 * MARGIN + (panes.length > 1 ? 380 : 112);
  const c = canvas.getContext("2d");
  c.fillStyle = colour("--paper");
  c.fillRect(0, 0, canvas.width, canvas.height);
  const serif = colour("--serif"), sans = colour("--sans");
  const text = (string, x, y, font, ink, width) => { c.font = font; c.fillStyle = ink; c.fillText(string, x, y, width); };
  const wrapped = (string, x, y, font, ink, width, step) => {
    c.font = font;
    let line = "";
    for (const word of string.split(" ")) {
      if (line && c.measureText(`${line} ${word}`).width > width) { text(line, x, y, font, ink); y += step; line = word; } else line = line ? `${line} ${word}` : word;
    }
    text(line, x, y, font, ink);
  };

  panes.forEach((pane, number) => {
    const left = MARGIN + number * column, height = (PICTURE * pane.stage.picture.height) / pane.stage.picture.width;
    c.save();
    c.translate(left, MARGIN);
    c.beginPath(); c.rect(0, 0, PICTURE, height); c.clip();
    pane.stage.compose(c, PICTURE, height, PICTURE / Math.max(1, pane.stage.canvas.clientWidth));
    c.restore();
    let x = left + PICTURE + MARGIN, y = MARGIN + 44, width = SIDE - MARGIN;
    if (panes.length > 1) { x = left; y = MARGIN + tall + 142; width = PICTURE; }
    const under = MARGIN + (panes.length > 1 ? tall : height);
    wrapped(words(pane), left, under + 38, `23px ${sans}`, colour("--muted"), PICTURE, 31);
    const rows = pane.said?.rows ?? pane.look.about.classes;
    text(pane.said?.title ?? rows[0]?.label ?? pane.model.name, x, y, `500 52px ${serif}`, colour("--ink"), width);
    rows.slice(0, panes.length > 1 ? 3 : 5).forEach((found, i) => {
      const top = y + 60 + i * 58;
      text(found.label, x, top, `25px ${sans}`, colour("--ink"), width - 120);
      c.textAlign = "right";
      text(percent(found.probability), x + width, top, `600 25px ${sans}`, colour("--ink"));
      c.textAlign = "left";
      c.fillStyle = colour("--rule"); c.fillRect(x, top + 12, width, 6);
      c.fillStyle = pane.said ? `rgb(${pane.said.colours[found.index].join(" ")})` : colour("--accent");
      c.fillRect(x, top + 12, width * found.probability, 6);
    });
  });
  if (panes.length === 1) {
    const x = MARGIN + PICTURE + MARGIN, width = SIDE - MARGIN, y = MARGIN + 430;
    text("All heads: blocks across, heads down", x, y, `22px ${sans}`, colour("--muted"), width);
    c.imageSmoothingEnabled = true;
    const fit = Math.min(width / heads.width, (tall - 400) / heads.height);
    c.drawImage(heads, x, y + 18, heads.width * fit, heads.height * fit);
  }
  text(`Vitrail Studio · ${panes[0].model.name}`, MARGIN, canvas.height - 20, `20px ${sans}`, colour("--muted"));
  const blob = await new Promise((done) => { canvas.toBlob(done, "image/png"); });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `${panes[0].picture.name.replace(/\.[^.]*$/, "") || "picture"}-vitrail.png`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

