// The view of a search for the bits of each layer: the front of cost and noise, and what each of its points gives a layer.

const FRONT = { width: 760, height: 300, left: 52, right: 14, top: 14, bottom: 40 };
const LOWEST_DB = -10; // below it nothing is left of the output, and how little is no matter
const MOST_BITS = 16;
let pointHasFocus = false;

function precisionView() {
  const { search, cost } = state();
  const place = Math.min(Math.max(Number(search) || 0, 0), DATA.searches.length - 1);
  const found = DATA.searches[place];
  if (!found) return el("p", { className: "remark" }, "This report holds no search.");
  const by = found.costs.find((each) => each.name === cost) ?? found.costs[0];
  const points = pointsOf(found, by.name);
  const chosen = points.find((each) => each.key === state().point) ?? points.find((each) => each.key === "");
  const several = DATA.searches.map((_, index) => [String(index), `search ${index + 1}`]);
  return el(
    "div",
    { className: "overview precision" },
    el(
      "section",
      {},
      el("h2", {}, "Cost and noise"),
      several.length > 1 ? choice("show", "search", several, String(place)) : null,
      choice("against", "cost", found.costs.map((each) => [each.name, each.label]), by.name),
      frontPicture(found, points, chosen, by),
      el("p", { className: "remark" }, "◆ what was found, ◇ as it was measured, ● the front. Arrow keys go from point to point."),
      el("p", { id: "point", role: "status" }, wordsOf(found, chosen)),
      found.notes.map((text) => el("p", { className: "remark" }, text)),
    ),
    el("section", {}, el("h2", {}, "Bits of each layer"), layersOf(found, chosen)),
  );
}

/** The points of the front and the one that was found, the cheapest first; one that is both stands once. */
function pointsOf(found, name) {
  const same = (point) => String(point.choices) === String(found.found.choices);
  const front = found.points.map((point, place) => ({ ...point, key: String(place), label: `point ${place} of the front` }));
  const points = [...front.filter((point) => !same(point)), { ...found.found, key: "", label: "found" }];
  for (const point of points) point.x = numberOf(point.costs[name]);
  return points.sort((a, b) => a.x - b.x);
}

function wordsOf(found, point) {
  const part = shown(point.costs.part);
  const measured = point.key === "" ? `, measured ${shown(found.measured)} dB` : "";
  return `${point.label}: ${point.words}; ${part} of all at 8 bits; predicted ${shown(point.sqnr)} dB${measured}`;
}

function frontPicture(found, points, chosen, by) {
  const measured = { x: points.find((each) => each.key === "").x, sqnr: found.measured };
  const heights = [...points, measured].map((each) => numberOf(each.sqnr)).filter(Number.isFinite);
  const [low, high] = [Math.max(Math.min(...heights, 0), LOWEST_DB), Math.max(...heights, 1)];
  const [first, last] = [points[0].x, Math.max(points.at(-1).x, points[0].x * 1.001, Number.MIN_VALUE)];
  const [wide, tall] = [FRONT.width - FRONT.left - FRONT.right, FRONT.height - FRONT.top - FRONT.bottom];
  const across = (x) => FRONT.left + (wide * (x - first)) / (last - first);
  const up = (y) => FRONT.top + tall * (1 - (Math.min(Math.max(numberOf(y), low), high) - low) / (high - low));
  const line = points.filter((each) => each.key !== "" || onFront(found)).map((each) => `${across(each.x)},${up(each.sqnr)}`);
  const marks = points.map((each) => mark(each, across(each.x), up(each.sqnr), each === chosen, points));
  const diamond = svg("path", { class: "measured", d: diamondAt(across(measured.x), up(measured.sqnr), 7) });
  return svg(
    "svg",
    { class: "front", viewBox: `0 0 ${FRONT.width} ${FRONT.height}`, role: "radiogroup", "aria-label": `predicted dB against ${by.label}` },
    ...gridLines(low, high, up).flat(),
    ...[first, (first + last) / 2, last].map((x) => frontText(across(x), FRONT.height - 20, shown(x), "middle")),
    frontText(FRONT.left + wide / 2, FRONT.height - 4, by.label, "middle"),
    frontText(4, 10, "predicted dB", "start"),
    svg("polyline", { class: "line", points: line.join(" ") }),
    Number.isFinite(numberOf(measured.sqnr)) ? diamond : null,
    ...marks,
  );
}

function onFront(found) {
  return found.points.some((point) => String(point.choices) === String(found.found.choices));
}

function gridLines(low, high, up) {
  const step = [1, 2, 5, 10, 20, 50, 100].find((each) => (high - low) / each <= 7) ?? 100;
  const lines = [];
  for (let y = Math.ceil(low / step) * step; y <= high; y += step) {
    lines.push([
      svg("line", { class: "grid", x1: FRONT.left, x2: FRONT.width - FRONT.right, y1: up(y), y2: up(y) }),
      frontText(FRONT.left - 6, up(y) + 4, shown(y), "end"),
    ]);
  }
  return lines;
}

function frontText(x, y, words, anchor) {
  const text = svg("text", { x, y, "text-anchor": anchor });
  text.textContent = words;
  return text;
}

function diamondAt(x, y, size) {
  return `M${x - size},${y} L${x},${y - size} L${x + size},${y} L${x},${y + size} Z`;
}

/** A point: one of them can be reached by the tab key, the others from there by arrows. */
function mark(point, x, y, isChosen, points) {
  const title = svg("title");
  title.textContent = `${point.label}: ${point.words}; ${shown(point.sqnr)} dB`;
  const shape = point.key === "" ? svg("path", { d: diamondAt(x, y, 7) }) : svg("circle", { cx: x, cy: y, r: 5 });
  const node = svg(
    "g",
    {
      class: `mark${point.key === "" ? " found" : ""}${isChosen ? " chosen" : ""}`,
      "data-point": point.key,
      role: "radio",
      "aria-checked": String(isChosen),
      "aria-label": title.textContent,
      tabindex: isChosen ? 0 : -1,
      onclick: () => choosePoint(point),
      onkeydown: (event) => stepFrom(event, point, points),
    },
    title,
    shape,
  );
  if (isChosen && pointHasFocus) queueMicrotask(() => node.focus());
  return node;
}

function choosePoint(point) {
  pointHasFocus = true;
  go({ point: point.key });
}

function stepFrom(event, point, points) {
  const steps = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, Home: -Infinity, End: Infinity };
  if (!(event.key in steps)) return;
  event.preventDefault();
  const place = Math.min(Math.max(points.indexOf(point) + steps[event.key], 0), points.length - 1);
  choosePoint(points[place]);
}

function layersOf(found, point) {
  pointHasFocus = false;
  const columns = ["layer", "choice", "weight", "result", "noise alone, as found"];
  const heads = columns.map((label) => el("th", { scope: "col" }, label));
  const rows = found.layers.map((layer, place) => {
    const chosen = found.candidates[point.choices[place]];
    const node = nodeOf(layer.unit);
    return el("tr", {}, [
      el("td", {}, node ? linkTo(layer.unit, layer.name) : layer.name, layer.together ? el("small", {}, ` ${layer.together}`) : null),
      el("td", {}, chosen.name),
      el("td", {}, layer.has_weight ? bitsOf(chosen.weight) : "–"),
      el("td", {}, layer.has_result || chosen.activation === null ? bitsOf(chosen.activation) : "float"),
      el("td", { className: "number" }, point.key === "" ? shown(layer.noise) : ""),
    ]);
  });
  return el("div", { className: "scroll" }, el("table", { className: "rows" }, el("thead", {}, el("tr", {}, heads)), el("tbody", {}, rows)));
}

/** A bar as long as there are bits, and their number; float takes the whole width. */
function bitsOf(bits) {
  const width = (100 * Math.min(bits ?? MOST_BITS, MOST_BITS)) / MOST_BITS;
  const bar = el("span", { className: bits === null ? "bitbar fate-float" : "bitbar fate-int8", style: `width:${width}px` });
  return el("span", { className: "bits" }, bar, bits === null ? "float" : String(bits));
}
