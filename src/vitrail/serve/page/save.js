// What is on the screen as one PNG: the picture with its overlay, what it is, and the answer.

import { told } from "./strip.js";

const PICTURE = 900, SIDE = 520, MARGIN = 48, LINE = 31, ROW = 58;

export async function savePicture(panes, heads, words) {
  const style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue(name).trim();
  const serif = colour("--serif"), sans = colour("--sans"), several = panes.length > 1;
  const canvas = document.createElement("canvas"), c = canvas.getContext("2d");
  const tall = Math.max(...panes.map((pane) => (PICTURE * pane.stage.picture.height) / pane.stage.picture.width));
  const lines = panes.map((pane) => wrapped(c, words(pane), `23px ${sans}`, PICTURE));
  const answers = panes.map(answer);
  const column = PICTURE + (several ? MARGIN : SIDE + MARGIN);
  // Under the pictures their words; the answers beside one picture, under several.
  const under = MARGIN + tall + 38 + LINE * Math.max(...lines.map((found) => found.length));
  const top = several ? under + 34 : MARGIN + 44;
  const below = top + 40 + ROW * Math.max(...answers.map(({ rows }) => rows.length)) + (answers.some(({ note }) => note) ? 50 : 0);
  const maps = several ? 0 : Math.max(260, MARGIN + tall - below - 36);
  canvas.width = MARGIN + column * panes.length;
  canvas.height = Math.round(Math.max(under, below + (several ? 0 : maps + 36)) + MARGIN + 26);
  c.fillStyle = colour("--paper");
  c.fillRect(0, 0, canvas.width, canvas.height);
  const text = (string, x, y, font, ink, width) => { c.font = font; c.fillStyle = ink; c.fillText(string, x, y, width); };

  panes.forEach((pane, number) => {
    const left = MARGIN + number * column, height = (PICTURE * pane.stage.picture.height) / pane.stage.picture.width;
    c.save();
    c.translate(left, MARGIN);
    c.beginPath(); c.rect(0, 0, PICTURE, height); c.clip();
    pane.stage.compose(c, PICTURE, height, PICTURE / Math.max(1, pane.stage.canvas.clientWidth));
    c.restore();
    const from = MARGIN + (several ? tall : height) + 38;
    lines[number].forEach((line, i) => text(line, left, from + i * LINE, `23px ${sans}`, colour("--muted")));
    const x = several ? left : left + PICTURE + MARGIN, width = several ? PICTURE : SIDE - MARGIN, { title, rows, note } = answers[number];
    text(title, x, top, `500 52px ${serif}`, colour("--ink"), width);
    rows.forEach((found, i) => {
      const y = top + 60 + i * ROW, share = (value, ink, alpha = 1) => { c.globalAlpha = alpha; c.fillStyle = ink; c.fillRect(x, y + 12, width * value, 6); c.globalAlpha = 1; };
      const now = told(found);
      c.textAlign = "right";
      text(now, x + width, y, `600 25px ${sans}`, colour("--ink"));
      const taken = c.measureText(now).width + 12;
      text(found.former ?? "", x + width - taken, y, `21px ${sans}`, colour("--muted"));
      const free = width - taken - c.measureText(found.former ?? "").width - 12;
      c.textAlign = "left";
      text(found.label, x, y, `25px ${sans}`, colour("--ink"), free);
      share(1, colour("--rule"));
      share(found.before ?? 0, colour("--gold"), 0.55);
      share(found.probability, pane.said ? `rgb(${pane.said.colours[found.index].join(" ")})` : colour("--accent"));
    });
    text(note, x, top + 60 + rows.length * ROW, `22px ${sans}`, colour("--gold"), width);
  });
  if (!several) {
    const x = MARGIN + PICTURE + MARGIN, width = SIDE - MARGIN, y = below + 18;
    text("All heads: blocks across, heads down", x, y, `22px ${sans}`, colour("--muted"), width);
    c.imageSmoothingEnabled = true;
    const fit = Math.min(width / heads.width, maps / heads.height);
    c.drawImage(heads, x, y + 18, heads.width * fit, heads.height * fit);
  }
  const names = [...new Set(panes.map((pane) => pane.model.name))].join(" · ");
  text(`Vitrail Studio · ${names}`, MARGIN, canvas.height - 20, `20px ${sans}`, colour("--muted"), canvas.width - 2 * MARGIN);
  const blob = await new Promise((done) => { canvas.toBlob(done, "image/png"); });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `${panes[0].picture.name.replace(/\.[^.]*$/, "") || "picture"}-vitrail.png`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// What the page says of a picture: a title, the rows of its list, and how much is hidden.
function answer(pane) {
  const rows = pane.said ? pane.said.rows.slice(0, 5) : pane.classes.shown;
  return { title: pane.said?.title ?? (rows.length ? pane.best.textContent : pane.model.name), rows, note: pane.hiddenWords() };
}

function wrapped(c, string, font, width) {
  c.font = font;
  const lines = [""];
  for (const word of string.split(" ")) {
    const longer = lines.at(-1) ? `${lines.at(-1)} ${word}` : word;
    if (lines.at(-1) && c.measureText(longer).width > width) lines.push(word); else lines[lines.length - 1] = longer;
  }
  return lines;
}
