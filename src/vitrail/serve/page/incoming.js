// The ways in for a picture: chosen, dropped, or pasted.

import { Refused } from "./api.js";

const $ = (id) => document.getElementById(id);

// `open(file, name, pane)`; a picture that is dropped on a pane goes there.
export function listen({ panes, open, failed }) {
  for (const id of ["choose", "choose-first"]) $(id).addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", (event) => {
    const [file] = event.target.files;
    if (file) open(file, file.name);
    event.target.value = "";
  });
  let depth = 0;
  const hasFile = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  document.addEventListener("dragenter", (event) => { if (hasFile(event)) { depth += 1; $("dropping").hidden = false; } });
  document.addEventListener("dragleave", (event) => { if (hasFile(event) && --depth <= 0) { depth = 0; $("dropping").hidden = true; } });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    depth = 0;
    $("dropping").hidden = true;
    const files = [...(event.dataTransfer?.files ?? [])];
    if (!files.length) return failed(new Refused("That was no file: drop a picture from your computer."));
    const under = panes.find((pane) => pane.root.contains(event.target));
    if (files.length > 1 && panes.length > 1) files.slice(0, 2).forEach((file, i) => open(file, file.name, panes[i]));
    else open(files[0], files[0].name, under);
  });
  document.addEventListener("paste", (event) => {
    const file = [...(event.clipboardData?.files ?? [])][0];
    if (file) open(file, file.name || "pasted picture");
  });
}
