// The graph view: boxes coloured by fate or by a measure, each with its label in words.

const SCALE = ["#440154", "#3b528b", "#21918c", "#5ec962", "#fde725"]; // viridis: told apart without colour vision too

function graphView() {
  const { drawing, boxes, by, open, bookkeeping } = state();
  const shownDrawing = DATA.drawings[Number(drawing)] ?? DATA.drawings[0];
  const titles = DATA.drawings.map((each, place) => [String(place), `${each.title} (${each.nodes.length} nodes)`]);
  const measure = measureOf(by);
  const now = boxesOf(shownDrawing, boxes);
  const serving = shownDrawing.nodes.filter((node) => node.bookkeeping).length;
  const ways = [["modules", "modules"], ["units", "units"], ["nodes", "every node"]];
  const bar = el(
    "div",
    { className: "toolbar" },
    choice("graph", "drawing", titles, drawing),
    choice("boxes", "boxes", ways, now),
    serving ? tick(`show bookkeeping (${serving})`, "bookkeeping", "shown", "hidden", bookkeeping) : null,
    now === "modules" && open ? el("button", { type: "button", className: "tab", onclick: () => go({ open: "" }) }, "close all") : null,
    choice("colour by", "by", [["fate", "what becomes of it"], ...MEASURES.map((m) => [m.key, m.label])], by),
    el("span", { className: "zoom" }, [
      el("button", { type: "button", title: "smaller", onclick: () => zoomBy(0.8) }, "−"),
      el("button", { type: "button", title: "fit to the width", onclick: () => zoomTo(null) }, "fit"),
      el("button", { type: "button", title: "larger", onclick: () => zoomBy(1.25) }, "+"),
    ]),
    legend(measure, shownDrawing),
  );
  const canvas = el("div", { className: "canvas", id: "canvas" }, el("p", { className: "remark" }, "placing the boxes …"));
  setUpMoving(canvas);
  layoutOf(shownDrawing, now, open, bookkeeping).then((layout) => {
    const drawn = picture(layout, measure);
    canvas.replaceChildren(drawn);
    setUpKeys(drawn, layout);
    queueMicrotask(() => {
      if (!canvas.isConnected) return; // another view was asked for meanwhile
      zoomTo(zoom);
      markSelected(true);
      document.documentElement.dataset.drawn = String(Math.round(performance.now()));
    });
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
  drawn.querySelector(".box")?.setAttribute("tabindex", "0");
  return drawn;
}

function drawnBox(box, measure, sorted) {
  const [x, y] = [box.x - BOX.width / 2, box.y - BOX.height / 2];
  const value = measure ? worstOf(measure, box) : undefined;
  const label = measure ? (value === undefined ? "" : shown(value)) : FATES.get(box.fate).label;
  const colour = measure ? colourOf(numberOf(value), sorted) : `var(--${box.fate})`;
  const open = () => (box.module === undefined ? go({ node: box.id }) : go({ open: [state().open, box.module].filter(Boolean).join("|") }));
  const title = svg("title");
  title.textContent = `${box.title}\n${box.subtitle} ${box.value}\n${box.names.join(", ")}`;
  return svg(
    "g",
    {
      class: "box",
      transform: `translate(${x},${y})`,
      style: `--c:${colour}`,
      "data-node": box.id,
      "data-names": box.names.join(" "),
      tabindex: -1,
      role: "button",
      "aria-label": `${box.title}, ${box.subtitle}, ${label}`,
      onclick: () => document.querySelector(".canvas.held") || open(),
      onkeydown: (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        open();
      },
    },
    title,
    svg("rect", { width: BOX.width, height: BOX.height, rx: 5 }),
    svg("rect", { class: "stripe", width: 7, height: BOX.height, rx: 3 }),
    textAt(15, 17, shortened(box.title, 27), "name"),
    textAt(15, 32, box.subtitle.slice(0, 18), "kind"),
    textAt(BOX.width - 8, 32, label, "label"),
  );
}

/** What was measured of a box: of a module, the worst of its units. */
function worstOf(measure, box) {
  const found = [box.id, ...box.units].map((name) => measure.values.get(name)).filter((value) => value !== undefined);
  const sign = measure.small ? 1 : -1;
  return found.sort((a, b) => sign * (numberOf(a) - numberOf(b)))[0];
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

/** Outline the node that is selected and its edges, and bring it into sight. */
function markSelected(scroll) {
  const { node, boxes } = state();
  const drawn = document.getElementById("picture");
  if (!drawn) return;
  for (const each of drawn.querySelectorAll(".selected")) each.classList.remove("selected");
  if (!node) return;
  const unit = nodeOf(node)?.unit;
  const held = [...drawn.querySelectorAll(".box")].find((each) => each.dataset.names.split(" ").includes(node));
  const holder = held?.dataset.node ?? (boxes !== "nodes" && unit ? unit : node);
  const name = CSS.escape(holder);
  const found = drawn.querySelectorAll(`[data-node="${name}"], [data-from="${name}"], [data-to="${name}"]`);
  for (const each of found) each.classList.add("selected");
  const box = drawn.querySelector(`[data-node="${name}"]`);
  if (box && scroll) box.scrollIntoView({ block: "center", inline: "center" });
}
