// The graph view: boxes coloured by fate or by a measure, each with its label in words.

const SCALE = ["#440154", "#3b528b", "#21918c", "#5ec962", "#fde725"]; // viridis: told apart without colour vision too
let zoom = null; // null: fitted to the width

function graphView() {
  const { drawing, boxes, by } = state();
  const shownDrawing = DATA.drawings[Number(drawing)] ?? DATA.drawings[0];
  const titles = DATA.drawings.map((each, place) => [String(place), `${each.title} (${each.nodes.length} nodes)`]);
  const measure = measureOf(by);
  const bar = el(
    "div",
    { className: "toolbar" },
    choice("graph", "drawing", titles, drawing),
    choice("boxes", "boxes", [["units", "units"], ["nodes", "every node"]], boxes),
    choice("colour by", "by", [["fate", "what becomes of it"], ...MEASURES.map((m) => [m.key, m.label])], by),
    el("span", { className: "zoom" }, [
      el("button", { type: "button", title: "smaller", onclick: () => zoomBy(0.8) }, "−"),
      el("button", { type: "button", title: "fit to the width", onclick: () => zoomTo(null) }, "fit"),
      el("button", { type: "button", title: "larger", onclick: () => zoomBy(1.25) }, "+"),
    ]),
    legend(measure, shownDrawing),
  );
  const layout = layoutOf(shownDrawing, boxes);
  const canvas = el("div", { className: "canvas", id: "canvas" }, picture(layout, measure));
  queueMicrotask(() => {
    zoomTo(zoom);
    markSelected(true);
  });
  return el("div", { className: "graph" }, bar, canvas);
}

function legend(measure, drawing) {
  if (!measure) {
    const present = new Set(drawing.nodes.map((node) => node.fate));
    return el("span", { className: "legend" }, [...FATES.keys()].filter((name) => present.has(name)).map(badge));
  }
  const sorted = sortedValues(measure);
  const strip = el("span", { className: "strip", style: `background:linear-gradient(90deg,${SCALE.join(",")})` });
  return el("span", { className: "legend" }, shown(sorted[0]), strip, `${shown(sorted.at(-1))}, a fifth of them in each colour`);
}

function sortedValues(measure) {
  return [...measure.values.values()].map(numberOf).filter(Number.isFinite).sort((a, b) => a - b);
}

function picture(layout, measure) {
  const margin = 12;
  const size = [layout.width + 2 * margin, layout.height + 2 * margin];
  const drawn = svg("svg", { id: "picture", viewBox: `${-margin} ${-margin} ${size[0]} ${size[1]}`, "data-width": size[0] });
  const sorted = measure && sortedValues(measure);
  for (const link of layout.links) {
    drawn.append(svg("path", { class: "edge", d: pathThrough(link.points), "data-from": link.from, "data-to": link.to }));
  }
  for (const box of layout.boxes) drawn.append(drawnBox(box, measure, sorted));
  return drawn;
}

function drawnBox(box, measure, sorted) {
  const [x, y] = [box.x - BOX.width / 2, box.y - BOX.height / 2];
  const value = measure ? (measure.values.get(box.unit) ?? measure.values.get(box.id)) : undefined;
  const label = measure ? (value === undefined ? "" : shown(value)) : FATES.get(box.fate).label;
  const colour = measure ? colourOf(numberOf(value), sorted) : `var(--${box.fate})`;
  const open = () => go({ node: box.id });
  const title = svg("title");
  title.textContent = `${box.title}\n${box.subtitle} ${box.value}\n${box.names.join(", ")}`;
  return svg(
    "g",
    {
      class: "box",
      transform: `translate(${x},${y})`,
      style: `--c:${colour}`,
      "data-node": box.id,
      tabindex: 0,
      role: "button",
      "aria-label": `${box.title}, ${box.subtitle}, ${label}`,
      onclick: open,
      onkeydown: (event) => event.key === "Enter" && open(),
    },
    title,
    svg("rect", { width: BOX.width, height: BOX.height, rx: 5 }),
    svg("rect", { class: "stripe", width: 7, height: BOX.height, rx: 3 }),
    textAt(15, 17, shortened(box.title, 27), "name"),
    textAt(15, 32, box.subtitle.slice(0, 18), "kind"),
    textAt(BOX.width - 8, 32, label, "label"),
  );
}

function textAt(x, y, words, kind) {
  const text = svg("text", { x, y, class: kind });
  text.textContent = words;
  return text;
}

/** By rank and not by size: one value far away would leave all others the same colour. */
function colourOf(value, sorted) {
  if (value !== value) return "var(--other)";
  const smaller = sorted.filter((other) => other < value).length;
  return SCALE[Math.min(Math.floor((smaller / sorted.length) * SCALE.length), SCALE.length - 1)];
}

function zoomBy(factor) {
  const drawn = document.getElementById("picture");
  zoomTo((drawn.getBoundingClientRect().width / Number(drawn.dataset.width)) * factor);
}

/** Show the picture at a scale; null: as wide as there is room, but never larger than life, nor too small to read. */
function zoomTo(scale) {
  zoom = scale;
  const drawn = document.getElementById("picture");
  const room = document.getElementById("canvas").clientWidth - 4;
  const width = Number(drawn.dataset.width);
  const fitted = Math.min(1.15, Math.max(room / width, 0.45));
  drawn.style.width = `${width * Math.min(Math.max(scale ?? fitted, 0.05), 4)}px`;
}

/** Outline the node that is selected and its edges, and bring it into sight. */
function markSelected(scroll) {
  const { node, boxes } = state();
  const drawn = document.getElementById("picture");
  if (!drawn) return;
  for (const each of drawn.querySelectorAll(".selected")) each.classList.remove("selected");
  const holder = node && boxes === "units" ? nodeOf(node)?.unit || node : node;
  if (!holder) return;
  const name = CSS.escape(holder);
  const found = drawn.querySelectorAll(`[data-node="${name}"], [data-from="${name}"], [data-to="${name}"]`);
  for (const each of found) each.classList.add("selected");
  const box = drawn.querySelector(`[data-node="${name}"]`);
  if (box && scroll) box.scrollIntoView({ block: "center", inline: "center" });
}
