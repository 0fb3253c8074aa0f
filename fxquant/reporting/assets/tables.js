// The tables view: every table that was given, to sort and to filter.

let sorting = { column: null, down: false };

function tablesView() {
  const place = Math.min(Number(state().table), DATA.tables.length - 1);
  const table = DATA.tables[place];
  const tabs = DATA.tables.map((each, index) =>
    el(
      "button",
      {
        type: "button",
        className: "tab" + (index === place ? " current" : ""),
        onclick: () => {
          sorting = { column: null, down: false };
          go({ table: String(index) });
        },
      },
      `${each.title} (${each.rows.length})`,
    ),
  );
  const filter = el("input", { type: "search", placeholder: "Filter rows", "aria-label": "filter rows" });
  const body = el("tbody");
  const fill = () => body.replaceChildren(...rowsOf(table, filter.value).map((row) => drawnRow(table, row)));
  filter.addEventListener("input", fill);
  const heads = ["node", ...table.columns].map((label, column) => {
    const sort = () => {
      sorting = { column, down: sorting.column === column ? !sorting.down : false };
      for (const each of heads) each.removeAttribute("aria-sort");
      heads[column].setAttribute("aria-sort", sorting.down ? "descending" : "ascending");
      fill();
    };
    const numeric = column > 0 && table.numeric[column - 1];
    return el("th", { className: numeric ? "number" : "", scope: "col" }, el("button", { type: "button", onclick: sort }, label));
  });
  fill();
  return el(
    "div",
    { className: "tables" },
    el("div", { className: "toolbar" }, ...tabs, ...downloadsOf(table, () => rowsOf(table, filter.value)), filter),
    table.help ? el("p", { className: "remark" }, table.help) : null,
    el(
      "div",
      { className: "scroll" },
      el("table", { className: "rows" }, el("thead", {}, el("tr", {}, heads)), body),
    ),
  );
}

function rowsOf(table, words) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const text = (row) => [...row, nodeOf(row[0])?.module].join(" ").toLowerCase();
  const rows = table.rows.filter((row) => wanted.every((word) => text(row).includes(word)));
  const { column, down } = sorting;
  if (column === null) return rows;
  const numeric = column > 0 && table.numeric[column - 1];
  const key = (row) => (numeric ? numberOf(row[column]) : String(row[column] ?? ""));
  const order = (a, b) => (numeric ? compareNumbers(key(a), key(b)) : key(a).localeCompare(key(b)));
  return rows.sort((a, b) => (down ? -order(a, b) : order(a, b)));
}

/** What is no number comes last. */
function compareNumbers(a, b) {
  if (a !== a || b !== b) return (a !== a) - (b !== b);
  return a === b ? 0 : a < b ? -1 : 1;
}

function drawnRow(table, row) {
  const node = nodeOf(row[0]);
  const cells = table.columns.map((label, place) => cellOf(label, row[place + 1], table.numeric[place]));
  return el(
    "tr",
    { onclick: () => go({ node: row[0] }), className: row[0] === state().node ? "current" : "" },
    el("td", {}, linkTo(row[0], node?.module || row[0]), node?.module && node.module !== row[0] ? el("small", {}, ` ${row[0]}`) : null),
    cells,
  );
}

function cellOf(label, value, numeric) {
  if (numeric) return el("td", { className: "number" }, shown(value));
  const text = shown(value);
  if (label === "line") return el("td", { title: text }, shortLine(text));
  return el("td", {}, FATES.has(text) ? badge(text) : text);
}
