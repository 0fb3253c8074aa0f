// What all views share: the data, the state in the address, and how elements are made. Text is always set as text.

const DATA = JSON.parse(document.getElementById("data").textContent);
const FATES = new Map(DATA.fates.map((fate) => [fate.name, fate]));
const SEARCHED = DATA.searches.length ? { precision: "Precision" } : {};
const VIEWS = { overview: "Overview", graph: "Graph", passes: "Passes", tables: "Tables", ...SEARCHED, beside: "Compare" };
const DEFAULTS = {
  ...{ view: "overview", node: "", drawing: "0", by: "fate", boxes: "auto", open: "", bookkeeping: "hidden", pass: "", table: "0" },
  ...{ search: "0", point: "", cost: "part" },
};

/** An element with properties (`on…` are listeners, `data-…` and `aria-…` attributes) and children; texts are text. */
function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  assign(node, properties);
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

/** The same in the SVG name space. */
function svg(tag, properties = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  assign(node, properties, true);
  node.append(...children.filter((child) => child !== null));
  return node;
}

function assign(node, properties, attributesOnly = false) {
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (attributesOnly || key.includes("-") || !(key in node)) node.setAttribute(key, value);
    else node[key] = value;
  }
}

/** What the address says, with defaults for the rest. */
function state() {
  const given = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  return { ...DEFAULTS, ...given };
}

/** Change some of it; the page follows. */
function go(changes) {
  const next = { ...state(), ...changes };
  if (changes.node && nodeOf(changes.node)?.bookkeeping) next.bookkeeping = "shown";
  const kept = Object.entries(next).filter(([key, value]) => key in DEFAULTS && value !== DEFAULTS[key]);
  location.hash = new URLSearchParams(kept).toString();
}

/** A number for people; what is no number is shown as it is. */
function shown(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return value === "inf" ? "∞" : value === "-inf" ? "−∞" : String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

/** A number to compare and to draw: infinities stay, what is none becomes NaN. */
function numberOf(value) {
  if (typeof value === "number") return value;
  return value === "inf" ? Infinity : value === "-inf" ? -Infinity : NaN;
}

/** `resnet.py:12` of a long path. */
function shortLine(line) {
  return line.slice(Math.max(line.lastIndexOf("/"), line.lastIndexOf("\\")) + 1);
}

/** The end of a text that is too long: the end of a path says more than its start. */
function shortened(text, length) {
  return text.length <= length ? text : "…" + text.slice(text.length - length + 1);
}

/** The node of that name: in the drawing that is shown, else in any. */
function nodeOf(name, drawing = Number(state().drawing)) {
  for (const each of [DATA.drawings[drawing], ...DATA.drawings]) {
    const found = each && indexOf(each).get(name);
    if (found) return found;
  }
  return null;
}

function indexOf(drawing) {
  drawing.index ??= new Map(drawing.nodes.map((node) => [node.name, node]));
  return drawing.index;
}

/** Everything that can colour a graph or stand in a curve: (key, label, unit -> value), from the numeric columns. */
const MEASURES = DATA.tables.flatMap((table, place) =>
  table.columns.flatMap((label, column) => {
    if (!table.numeric[column]) return [];
    const values = new Map(table.rows.map((row) => [row[0], row[column + 1]]));
    const name = { key: `${place}.${column}`, label: `${table.title}: ${label}`, column: label };
    return [{ ...name, values, table, small: isBadWhenSmall(label) }];
  }),
);

/** Whether small values of a column are the bad ones: signal to noise, cosines, shares that agree. */
function isBadWhenSmall(label) {
  return /\b(isolated|accumulated|sqnr|cosine|equal|weight|gain|speed)/i.test(label);
}

function measureOf(key) {
  return MEASURES.find((measure) => measure.key === key) ?? null;
}

/** The worst first: [node, value] of what has a number. */
function worstFirst(measure) {
  const sign = measure.small ? 1 : -1;
  const rows = [...measure.values].map(([name, value]) => [name, numberOf(value)]).filter(([, value]) => value === value);
  return rows.sort((a, b) => (a[1] === b[1] ? 0 : sign * (a[1] < b[1] ? -1 : 1)));
}

/** A label in the colour of a fate. */
function badge(name) {
  const fate = FATES.get(name);
  return el("span", { className: `badge fate-${name}`, title: fate.help }, fate.label);
}

/** A button that shows the details of a node. */
function linkTo(name, text = name) {
  return el("button", { type: "button", className: "link", title: name, onclick: () => go({ node: name }) }, text);
}

/** A drop-down that changes one entry of the state. */
function choice(label, key, options, current) {
  const items = options.map(([value, text]) => el("option", { value, selected: value === current }, text));
  return el("label", { className: "choice" }, label, el("select", { onchange: (e) => go({ [key]: e.target.value }) }, items));
}

/** A box to tick that changes one entry of the state between two values. */
function tick(label, key, on, off, current) {
  const box = el("input", { type: "checkbox", checked: current === on, onchange: (e) => go({ [key]: e.target.checked ? on : off }) });
  return el("label", { className: "choice" }, box, label);
}

/** Colours of the present theme, for what is drawn on canvas. */
function themeColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
