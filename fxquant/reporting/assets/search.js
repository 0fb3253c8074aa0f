// The search of the head: every word must be found somewhere in what is known of a node.

const MOST_FOUND = 60;

function setUpSearch() {
  const query = document.getElementById("query");
  const list = document.getElementById("found");
  const nodes = new Map(DATA.drawings.toReversed().flatMap((drawing) => drawing.nodes.map((node) => [node.name, node])));
  const entries = [...nodes.values()].map((node) => ({ node, text: searchable(node) }));
  const hide = () => (list.hidden = true);
  const find = () => {
    const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
    list.hidden = !words.length;
    if (!words.length) return;
    const hits = entries.filter((entry) => words.every((word) => entry.text.includes(word)));
    const items = hits.slice(0, MOST_FOUND).map(({ node }) => foundItem(node, hide));
    const all = hits.length > items.length ? `, of which the first ${items.length} are here` : "";
    const count = hits.length === 1 ? "1 node" : `${shown(hits.length)} nodes${all}`;
    list.replaceChildren(el("p", { className: "remark", role: "status" }, count), ...items);
  };
  query.addEventListener("input", find);
  query.addEventListener("focus", find);
  query.addEventListener("keydown", (event) => {
    if (event.key === "Enter") list.querySelector("button")?.click();
    if (event.key === "ArrowDown") list.querySelector("button")?.focus();
  });
  list.addEventListener("keydown", (event) => {
    const next = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    if (!next) return;
    event.preventDefault();
    const to = document.activeElement[next];
    if (to?.matches("button")) to.focus();
    else if (event.key === "ArrowUp") query.focus();
  });
  document.addEventListener("pointerdown", (event) => document.getElementById("search").contains(event.target) || hide());
  document.addEventListener("keydown", (event) => {
    const typing = /^(input|select|textarea)$/i.test(document.activeElement?.tagName ?? "");
    if (event.key === "/" && !typing) {
      event.preventDefault();
      query.focus();
    }
    if (event.key === "Escape") {
      if (!list.hidden) hide();
      else go({ node: "" });
    }
  });
}

function searchable(node) {
  const unit = DATA.units[node.unit]?.pattern;
  const fate = FATES.get(node.fate).label;
  return [node.name, node.module, node.op, node.call, unit, fate, node.reason, node.line, node.value].join(" ").toLowerCase();
}

function foundItem(node, hide) {
  const open = () => {
    hide();
    go({ node: node.name });
  };
  return el(
    "button",
    { type: "button", className: "hit", onclick: open },
    badge(node.fate),
    el("span", {}, node.module || node.name),
    el("small", {}, `${node.name} · ${node.op}`),
  );
}
