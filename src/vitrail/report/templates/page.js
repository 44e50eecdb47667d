// Everything on the page can be read without this script; it adds reading off, sorting, filtering and copying.
"use strict";
document.documentElement.classList.add("js");

const data = (element) => JSON.parse(element.querySelector("script[type='application/json']").textContent);
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

// The pointer in the units of the drawing.
function inside(svg, event) {
  const box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal;
  return [(event.clientX - box.left) * view.width / box.width, (event.clientY - box.top) * view.height / box.height];
}

for (const chart of document.querySelectorAll("[data-chart]")) {
  const points = data(chart), svg = chart.querySelector("svg:not(.sample)"), hover = svg.querySelector(".hover");
  const cross = hover.querySelector(".cross"), dots = hover.querySelectorAll(".dot");
  const at = chart.querySelector(".at"), values = chart.querySelectorAll(".key b");
  let index = points.rest;
  const show = (i, visible) => {
    index = clamp(i, 0, points.x.length - 1);
    at.textContent = points.labels[index];
    points.series.forEach((line, s) => {
      values[s].textContent = line.text[index];
      const y = line.y ? line.y[index] : null;
      dots[s].toggleAttribute("hidden", y === null);
      if (y !== null) { dots[s].setAttribute("cx", points.x[index]); dots[s].setAttribute("cy", y); }
    });
    cross.setAttribute("x1", points.x[index]);
    cross.setAttribute("x2", points.x[index]);
    hover.toggleAttribute("hidden", !visible);
  };
  svg.addEventListener("pointermove", (event) => {
    const [x, y] = inside(svg, event);
    const far = (i) => Math.hypot(points.x[i] - x, points.scattered ? points.series[0].y[i] - y : 0);
    let best = 0;
    points.x.forEach((value, i) => { if (far(i) < far(best)) best = i; });
    show(best, true);
  });
  svg.addEventListener("pointerleave", () => show(points.rest, false));
  chart.addEventListener("blur", () => show(points.rest, false));
  chart.addEventListener("keydown", (event) => {
    const target = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: points.x.length - 1 }[event.key];
    if (target === undefined) return;
    event.preventDefault();
    show(target, true);
  });
}

for (const heat of document.querySelectorAll("[data-heat]")) {
  const map = data(heat), svg = heat.querySelector("svg"), cursor = svg.querySelector(".cursor");
  const readout = heat.querySelector(".readout"), n = map.names.length;
  const counts = new Map(map.cells.map(([row, column, count]) => [row * n + column, count]));
  let place = [0, 0];
  const bold = (text) => Object.assign(document.createElement("b"), { textContent: text });
  const show = (row, column) => {
    place = [clamp(row, 0, n - 1), clamp(column, 0, n - 1)];
    [row, column] = place;
    const count = counts.get(row * n + column) || 0, total = map.totals[row];
    const share = total ? ` (${(100 * count / total).toFixed(1)}\u202f%)` : "";
    cursor.removeAttribute("hidden");
    cursor.setAttribute("x", map.origin[0] + column * map.side);
    cursor.setAttribute("y", map.origin[1] + row * map.side);
    const same = map.merged ? " were called another of these" : " were recognised";
    const said = row === column ? [same] : [" were called ", bold(map.names[column])];
    readout.replaceChildren(`${count} of ${total} images of `, bold(map.names[row]), ...said, `${share}.`);
  };
  svg.addEventListener("pointermove", (event) => {
    const [x, y] = inside(svg, event);
    const column = Math.floor((x - map.origin[0]) / map.side), row = Math.floor((y - map.origin[1]) / map.side);
    if (row >= 0 && column >= 0 && row < n && column < n) show(row, column);
  });
  heat.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    if (cursor.hasAttribute("hidden")) show(0, 0);
    else show(place[0] + step[0], place[1] + step[1]);
  });
}

for (const table of document.querySelectorAll("[data-sortable]")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells], rows = [...body.rows];
  const key = (row, column) => {
    const cell = row.cells[column], value = cell.dataset.v;
    return value === undefined ? cell.textContent.toLowerCase() : value === "" ? null : Number(value);
  };
  const compare = (a, b) => (typeof a === "number" ? a - b : a.localeCompare(b));
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const falling = head.getAttribute("aria-sort") === "ascending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", falling ? "descending" : "ascending");
    rows.sort((left, right) => {
      const a = key(left, column), b = key(right, column);
      if (a === null || b === null) return (a === null) - (b === null);  // unknown ones last, either way
      return falling ? compare(b, a) : compare(a, b);
    });
    body.append(...rows);
  }));
  const section = table.closest("section"), box = section.querySelector("input"), note = section.querySelector(".filter span");
  if (!box) continue;
  box.addEventListener("input", () => {
    const wanted = box.value.trim().toLowerCase();
    let shown = 0;
    for (const row of rows) {
      row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted);
      shown += !row.hidden;
    }
    note.textContent = wanted ? `${shown} of ${rows.length} classes` : `${rows.length} classes`;
  });
}

for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      getSelection().selectAllChildren(code);
      document.execCommand("copy");
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1600);
  });
}

addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => { each.open = true; }));
