// Tables as files: comma-separated values, or JSON, of the rows that the filter leaves, in the order in which they stand.

function downloadsOf(table, rows) {
  const name = table.title.toLowerCase().replace(/[^a-z0-9]+/g, "-");
  const button = (label, kind, make) =>
    el("button", { type: "button", className: "tab", title: `download as ${label}`, onclick: () => download(`${name}.${kind}`, make(table, rows()), TYPES[kind]) }, label);
  return [button("CSV", "csv", asCsv), button("JSON", "json", asJson)];
}

const TYPES = { csv: "text/csv", json: "application/json" };

/** RFC 4180; what a program for tables would take for a formula begins with a quote, as it shows text. */
function asCsv(table, rows) {
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    const safe = typeof value !== "number" && /^[=+@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return [["node", ...table.columns], ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

function asJson(table, rows) {
  const named = (row) => Object.fromEntries(["node", ...table.columns].map((label, place) => [label, row[place] ?? null]));
  return JSON.stringify({ title: table.title, about: Object.fromEntries(DATA.about), rows: rows.map(named) }, null, 1);
}

function download(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
