// The panel of one node: what it is, what becomes of it, what was measured, and its tensors with their histograms.

function showDetails() {
  const panel = document.getElementById("details");
  const { node: name } = state();
  const node = name ? nodeOf(name) : null;
  panel.hidden = !name;
  document.body.classList.toggle("with-details", Boolean(name));
  if (!name) return panel.replaceChildren();
  const close = el("button", { type: "button", className: "close", title: "close (Esc)", onclick: () => go({ node: "" }) }, "×");
  if (!node) return panel.replaceChildren(close, el("h2", {}, name), el("p", {}, "No graph of this report has a node of that name."));
  const unit = DATA.units[node.unit];
  const parts = [
    close,
    el("h2", {}, node.module || node.name),
    el("p", { className: "badges" }, badge(node.fate), " ", el("code", {}, node.name)),
    node.reason ? el("p", { className: "reason" }, node.reason) : null,
    factsOf(node, unit),
    measuredOf(node),
    ...(unit ? rolesOf(unit) : tensorOf("value", node.name)),
  ];
  panel.replaceChildren(...parts.filter(Boolean));
  panel.scrollTop = 0;
  document.dispatchEvent(new Event("details-shown"));
}

function definition(rows) {
  const filled = rows.filter(([, value]) => value !== null && value !== undefined && value !== "" && value.length !== 0);
  return el("dl", {}, filled.flatMap(([term, value]) => [el("dt", {}, term), el("dd", {}, value)]));
}

function factsOf(node, unit) {
  const members = unit && unit.nodes.at(-1) === node.name ? unit.nodes : [node.name];
  const outside = (names) => [...new Set(names)].filter((name) => !members.includes(name));
  const sources = outside(members.flatMap((name) => nodeOf(name)?.inputs ?? []));
  const readers = outside(usersOf(node.name));
  const links = (names) => names.flatMap((name, place) => [place ? " " : "", linkTo(name)]);
  return definition([
    ["operator", node.op],
    ["call", el("code", {}, node.call)],
    ["value", node.value && el("code", {}, node.value)],
    ["qparams", node.qparams && el("code", {}, node.qparams)],
    ["unit", unit?.pattern],
    ["nodes", unit && unit.nodes.length > 1 && links(unit.nodes)],
    ["MACs", node.macs ? shown(node.macs) : ""],
    ["from", node.line && el("code", { title: node.line }, shortLine(node.line))],
    ["reads", links(sources)],
    ["read by", links(readers)],
    ["shown in", el("span", {}, placesOf(node))],
  ]);
}

function usersOf(name) {
  const drawing = DATA.drawings.find((each) => indexOf(each).get(name) === nodeOf(name));
  return drawing ? drawing.nodes.filter((node) => node.inputs.includes(name)).map((node) => node.name) : [];
}

function placesOf(node) {
  const open = (text, changes) =>
    el("button", { type: "button", className: "link", onclick: () => go({ ...changes, node: node.name }) }, text);
  const graphs = DATA.drawings.flatMap((each, place) =>
    indexOf(each).has(node.name) ? [open(each.title, { view: "graph", drawing: String(place) }), " "] : [],
  );
  const changing = DATA.passes.steps.flatMap((step, place) =>
    step.changes.length && textsDiffer(step, node.name) ? [open(step.name, { view: "passes", pass: String(place) }), " "] : [],
  );
  return [...graphs, ...changing];
}

/** Whether a pass changed the line that defines a node. */
function textsDiffer(step, name) {
  const line = (index) => textOf(index).find((each) => definedBy(each) === name);
  return line(step.before) !== line(step.after);
}

/** Of every table but coverage, what it says of the node. */
function measuredOf(node) {
  const sections = DATA.tables.slice(1).filter((table) => !table.tensors).map((table) => {
    const own = MEASURES.filter((measure) => measure.table === table);
    const rows = own.map((measure) => [measure.column, shown(measure.values.get(node.unit || node.name))]);
    return rows.some(([, value]) => value) ? [el("h3", {}, table.title), definition(rows)] : [];
  });
  return sections.flat().length ? el("section", {}, sections) : null;
}

const ROLES = { y: "result", weight: "weight", x: "input", residual: "residual" };

function rolesOf(unit) {
  const order = ["weight", "y"];
  const roles = Object.entries(unit.roles).sort(([a], [b]) => order.indexOf(b) - order.indexOf(a));
  return roles.flatMap(([role, name]) => tensorOf(ROLES[role] ?? role, name));
}

/** One tensor: qparams, range, histogram with the quantization range, scales per channel. */
function tensorOf(role, name) {
  const tensor = DATA.tensors[name];
  if (!tensor) return [];
  const range = tensor.min === undefined ? "" : `${shown(tensor.min)} … ${shown(tensor.max)}`;
  const spread = tensor.spread && `${shown(tensor.spread[0])} … ${shown(tensor.spread[2])}, median ${shown(tensor.spread[1])}`;
  const parts = [
    el("h3", {}, role, " ", el("small", {}, name.split("@")[0])),
    definition([
      ["scheme", tensor.scheme],
      ["steps", tensor.steps && `${tensor.steps[0]} … ${tensor.steps[1]}`],
      ["scale", tensor.spread ? `${spread} (${shown(tensor.channels)} channels)` : shown(tensor.scale)],
      ["zero point", shown(tensor.zero)],
      ["covers", tensor.clip && `${shown(tensor.clip[0])} … ${shown(tensor.clip[1])}`],
      ["seen", range],
      ["clipped", tensor.clipped === undefined ? "" : `${shown(100 * tensor.clipped)} % of what was seen`],
      ["not finite", tensor.nonfinite && `${shown(tensor.nonfinite)} values`],
      ["chosen", tensor.policy],
      ["shape", tensor.shape],
    ]),
  ];
  if (tensor.counts) parts.push(histogramOf(tensor));
  if (tensor.scales) parts.push(scalesOf(tensor));
  return [el("section", { className: "tensor" }, parts)];
}

function histogramOf(tensor) {
  const box = el("div", { className: "plot histogram" });
  const logarithmic = el("input", { type: "checkbox", checked: true, onchange: () => draw() });
  const centres = tensor.counts.map((_, place) => tensor.low + (place + 0.5) * tensor.width);
  const ends = [tensor.low, tensor.low + tensor.width * tensor.counts.length];
  const clip = tensor.clip?.every((end) => typeof end === "number") ? tensor.clip : null;
  const span = clip ? [Math.min(ends[0], clip[0]), Math.max(ends[1], clip[1])] : ends;
  const draw = () => {
    box.replaceChildren();
    const log = logarithmic.checked;
    const counts = tensor.counts.map((count) => (log ? Math.log10(count + 1) : count));
    new uPlot(
      {
        width: box.clientWidth || 340,
        height: 150,
        legend: { show: false },
        cursor: { show: false },
        scales: { x: { time: false, range: () => padded(span) } },
        axes: axes("real units", log ? "values, log₁₀" : "values"),
        series: [
          {},
          { fill: themeColour("int8"), stroke: themeColour("int8"), paths: uPlot.paths.bars({ size: [1, 100], gap: 0 }), points: { show: false } },
        ],
        hooks: { draw: clip ? [(plot) => drawClip(plot, clip)] : [] },
      },
      [centres, counts],
      box,
    );
  };
  document.addEventListener("details-shown", draw, { once: true });
  const source = tensor.source === "the weight" ? "the weight" : `as seen in ${tensor.source === "data" ? "the given data" : "calibration"}`;
  const words = clip ? `${source}; between the dashed lines is the quantization range` : source;
  return el("figure", {}, box, el("figcaption", {}, words, " ", el("label", {}, logarithmic, " logarithmic")));
}

function padded([low, high]) {
  const room = (high - low || 1) * 0.04;
  return [low - room, high + room];
}

/** Shade what is clipped, and draw the ends of the range. */
function drawClip(plot, clip) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = themeColour("float");
  ctx.lineWidth = 2;
  ctx.setLineDash([6, 4]);
  const [low, high] = clip.map((end) => plot.valToPos(end, "x", true));
  for (const x of [low, high]) {
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.globalAlpha = 0.12;
  ctx.fillRect(bbox.left, bbox.top, Math.max(low - bbox.left, 0), bbox.height);
  ctx.fillRect(high, bbox.top, Math.max(bbox.left + bbox.width - high, 0), bbox.height);
  ctx.restore();
}

function scalesOf(tensor) {
  const box = el("div", { className: "plot histogram" });
  const values = tensor.scales.map(numberOf);
  const each = Math.ceil(tensor.channels / values.length);
  const draw = () =>
    new uPlot(
      {
        width: box.clientWidth || 340,
        height: 120,
        legend: { show: false },
        cursor: { show: false },
        scales: { x: { time: false } },
        axes: axes("channel", "scale"),
        series: [{}, { stroke: themeColour("int8"), width: 1, fill: themeColour("int8-faint"), points: { show: false } }],
      },
      [values.map((_, place) => place * each), values],
      box,
    );
  document.addEventListener("details-shown", draw, { once: true });
  return el("figure", {}, box, el("figcaption", {}, each > 1 ? `scales; of each ${each} channels the largest` : "scale of each channel"));
}
