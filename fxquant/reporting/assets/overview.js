// The first view: how far the model is, what stays float and why, and where the noise is.

function overview() {
  const parts = [tiles(), note(), shares(), curve(), floatRows(), aboutRows()];
  return el("div", { className: "overview" }, ...parts.filter(Boolean));
}

function tiles() {
  const tile = ([label, value, remark, wrong]) =>
    el("div", { className: wrong ? "tile wrong" : "tile" }, el("span", {}, label), el("strong", {}, value), el("small", {}, remark));
  return el("div", { className: "tiles" }, DATA.summary.map(tile));
}

/** What was looked at, on what data, when and by what. */
function aboutRows() {
  const whole = el("button", { type: "button", className: "link", onclick: () => download("report.json", JSON.stringify(DATA), "application/json") }, "all of it as JSON");
  return el("footer", { className: "remark" }, definition(DATA.about), whole);
}

function note() {
  return DATA.note ? el("pre", { className: "note" }, DATA.note) : null;
}

/** A bar of all multiply-accumulates, by what becomes of them. */
function shares() {
  const macs = new Map();
  for (const node of DATA.drawings[0].nodes) {
    if (!node.unit || node.unit === node.name) macs.set(node.fate, (macs.get(node.fate) ?? 0) + node.macs);
  }
  const total = [...macs.values()].reduce((sum, value) => sum + value, 0);
  if (!total) return null;
  const used = DATA.fates.filter((fate) => macs.get(fate.name));
  const percent = (fate) => (100 * macs.get(fate.name)) / total;
  const bars = used.map((fate) =>
    el("div", { className: `bar fate-${fate.name}`, style: `width:${percent(fate)}%`, title: fate.help }),
  );
  const labels = used.map((fate) => el("li", {}, badge(fate.name), ` ${shown(percent(fate))} %`));
  return el(
    "section",
    {},
    el("h2", {}, "Multiply-accumulates"),
    el("div", { className: "bars" }, bars),
    el("ul", { className: "legend" }, labels),
  );
}

/** One measure along the network, and its worst units. */
function curve() {
  if (MEASURES.length < 2) return null;
  const preferred = MEASURES.find((each) => /isolated/.test(each.label)) ?? MEASURES[0];
  const measure = measureOf(state().by) ?? preferred;
  const order = new Map(DATA.drawings[0].nodes.map((node, place) => [node.name, place]));
  const points = [...measure.values]
    .map(([name, value]) => ({ name, value: numberOf(value), place: order.get(name) ?? -1 }))
    .filter((point) => Number.isFinite(point.value))
    .sort((a, b) => a.place - b.place);
  const box = el("div", { className: "plot wide" });
  const worst = worstFirst(measure)
    .slice(0, 10)
    .map(([name, value]) => {
      const node = nodeOf(name);
      return el("tr", { onclick: () => go({ node: name }) }, [
        el("td", {}, linkTo(name, node?.module || name)),
        el("td", {}, node?.unit ? DATA.units[node.unit].pattern : (node?.op ?? "")),
        el("td", { className: "number" }, shown(value)),
      ]);
    });
  queueMicrotask(() => drawCurve(box, measure, points));
  return el(
    "section",
    {},
    el("h2", {}, "Along the network"),
    choice("show", "by", MEASURES.map((each) => [each.key, each.label]), measure.key),
    box,
    el("h3", {}, measure.small ? "The ten lowest" : "The ten highest"),
    el("table", { className: "rows short" }, el("tbody", {}, worst)),
  );
}

function drawCurve(box, measure, points) {
  const places = points.map((_, place) => place + 1);
  const hover = { hooks: { setCursor: [(plot) => label(plot)] } };
  const words = el("p", { className: "remark" }, "Point at the curve for a unit's name; click to see all of it.");
  const label = (plot) => {
    const point = points[plot.cursor.idx];
    words.textContent = point ? `${nodeOf(point.name)?.module || point.name}: ${shown(point.value)}` : " ";
  };
  const plot = new uPlot(
    {
      width: box.clientWidth || 600,
      height: 220,
      scales: { x: { time: false } },
      legend: { show: false },
      cursor: { y: false, drag: { x: true, y: false } },
      axes: axes("unit, from input to output", measure.label),
      series: [{}, { stroke: themeColour("int8"), width: 1.5, points: { show: true, size: 5 } }],
      plugins: [hover],
    },
    [places, points.map((point) => point.value)],
    box,
  );
  box.append(words);
  plot.over.addEventListener("click", () => {
    const point = points[plot.cursor.idx];
    if (point) go({ node: point.name });
  });
}

/** Two axes in the colours of the theme. */
function axes(x, y) {
  const ink = themeColour("quiet");
  const look = { stroke: ink, grid: { stroke: themeColour("line"), width: 1 }, ticks: { stroke: themeColour("line") } };
  const small = "11px system-ui, sans-serif";
  return [
    { ...look, label: x, font: small, labelFont: small, labelSize: 18, size: 32 },
    { ...look, label: y, font: small, labelFont: small, labelSize: 18, size: 58, values: (_, ticks) => ticks.map(shown) },
  ];
}

function floatRows() {
  const order = { float: 0, excused: 1 };
  const nodes = DATA.drawings[0].nodes.filter((node) => node.fate in order && node.reason);
  if (!nodes.length) return null;
  nodes.sort((a, b) => order[a.fate] - order[b.fate] || b.macs - a.macs);
  const rows = nodes.slice(0, 40).map((node) =>
    el("tr", { onclick: () => go({ node: node.name }) }, [
      el("td", {}, badge(node.fate)),
      el("td", {}, linkTo(node.name, node.module || node.name)),
      el("td", {}, node.op),
      el("td", {}, node.reason),
    ]),
  );
  const more = nodes.length > rows.length ? el("p", { className: "remark" }, `${nodes.length} in all: see Tables.`) : null;
  return el(
    "section",
    {},
    el("h2", {}, "What stays float, and why"),
    el("div", { className: "scroll" }, el("table", { className: "rows" }, el("tbody", {}, rows))),
    more,
  );
}
