// The compare view: another report beside this one, as its file holds it; nothing of it is run.

let other = null; // what the other report holds

function besideView() {
  const file = el("input", {
    type: "file",
    accept: ".html,text/html",
    onchange: async (event) => {
      const chosen = event.target.files[0];
      if (chosen) showBeside(await chosen.text());
    },
  });
  const words = el("p", { className: "remark" }, "Numbers of this report, and beside them those of another one: of other bits, other data, an earlier day.");
  return el("div", { className: "beside" }, el("h2", {}, "Compare"), words, el("label", { className: "choice" }, "another report", file), besideBody());
}

/** Take the text of a report, and show it beside. */
function showBeside(text) {
  const found = /<s[c]ript type="application\/json" id="data">(.*?)<\/s[c]ript>/s.exec(text);
  try {
    other = JSON.parse(found[1]);
  } catch {
    other = { wrong: true };
  }
  drawn = "";
  render();
}

function besideBody() {
  if (!other) return null;
  if (other.wrong || !other.tables) return el("p", { className: "reason" }, "This file is no report of fxquant.");
  const tables = DATA.tables.filter((table) => other.tables.some((each) => each.title === table.title));
  const place = Math.min(Number(state().table), tables.length - 1);
  const titles = tables.map((table, index) => [String(index), table.title]);
  return el(
    "div",
    {},
    el("div", { className: "pair" }, summaryOf(DATA, "this report"), summaryOf(other, "the other one")),
    choice("table", "table", titles, String(place)),
    tables.length ? differencesOf(tables[place], other.tables.find((each) => each.title === tables[place].title)) : null,
  );
}

function summaryOf(data, label) {
  const rows = [...(data.about ?? []), ...data.summary.map(([name, value]) => [name, value])];
  return el("div", {}, el("h3", {}, `${label}: ${data.title}`), definition(rows));
}

/** Units of both reports, the largest differences of the last numeric column first. */
function differencesOf(own, theirs) {
  const columns = own.columns.filter((label) => theirs.columns.includes(label) && label !== "line");
  const value = (table, row, label) => row?.[table.columns.indexOf(label) + 1];
  const rows = new Map(theirs.rows.map((row) => [row[0], row]));
  const names = [...new Set([...own.rows.map((row) => row[0]), ...rows.keys()])];
  const mine = new Map(own.rows.map((row) => [row[0], row]));
  const heads = columns.flatMap((label) => (own.numeric[own.columns.indexOf(label)] ? [label, "other", "difference"] : [label, "other"]));
  const body = names.map((name) => {
    const cells = columns.flatMap((label) => cellsOf(label, own.numeric[own.columns.indexOf(label)], value(own, mine.get(name), label), value(theirs, rows.get(name), label)));
    return el("tr", {}, el("td", {}, mine.has(name) ? linkTo(name, nodeOf(name)?.module || name) : name), cells);
  });
  const changed = names.filter((name) => columns.some((label) => shown(value(own, mine.get(name), label)) !== shown(value(theirs, rows.get(name), label))));
  return el(
    "div",
    { className: "scroll", tabIndex: 0 },
    el("p", { className: "remark" }, `${changed.length} of ${names.length} rows differ`),
    el("table", { className: "rows" }, el("thead", {}, el("tr", {}, ["node", ...heads].map((head) => el("th", { scope: "col" }, head)))), el("tbody", {}, body)),
  );
}

function cellsOf(label, numeric, mine, theirs) {
  if (!numeric) return [el("td", {}, shown(mine)), el("td", { className: shown(mine) === shown(theirs) ? "" : "worse" }, shown(theirs))];
  const difference = numberOf(theirs) - numberOf(mine);
  const good = isBadWhenSmall(label) ? difference > 0 : difference < 0;
  const kind = difference === difference && difference !== 0 ? (good ? "number better" : "number worse") : "number";
  const signed = difference === difference ? `${difference > 0 ? "+" : ""}${shown(difference)}` : "";
  return [el("td", { className: "number" }, shown(mine)), el("td", { className: "number" }, shown(theirs)), el("td", { className: kind }, signed)];
}
