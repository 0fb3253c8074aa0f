// The passes view: the graph before and after each pass side by side, with what changed marked.

const CONTEXT = 3; // lines that stay in sight around a change

function passesView() {
  const { steps } = DATA.passes;
  const first = steps.findIndex((step) => step.changes.length);
  const current = Number(state().pass || Math.max(first, 0));
  const items = steps.map((step, place) =>
    el(
      "button",
      {
        type: "button",
        className: "step" + (place === current ? " current" : "") + (step.changes.length ? "" : " idle"),
        onclick: () => go({ pass: String(place) }),
      },
      el("span", {}, step.name),
      el("small", {}, step.changes.length ? `+${step.added} −${step.removed}` : "no change"),
    ),
  );
  const step = steps[current];
  const head = el(
    "div",
    { className: "passhead" },
    el("h2", {}, step.name),
    el("p", {}, step.help),
    el("p", { className: "remark" }, `pass ${step.step} of its pipeline · +${step.added} −${step.removed} lines · ${step.ms} ms`),
  );
  return el(
    "div",
    { className: "passes" },
    el("nav", { className: "steps", "aria-label": "passes" }, items),
    el("div", { className: "passbody" }, head, comparison(step)),
  );
}

function textOf(index) {
  return DATA.passes.texts[index].map((line) => DATA.passes.lines[line]);
}

function comparison(step) {
  const [before, after] = [textOf(step.before), textOf(step.after)];
  const table = el("div", { className: "sides" });
  table.append(el("div", { className: "sidehead" }, "before"), el("div", { className: "sidehead" }, "after"));
  const changes = step.changes.length ? step.changes : [["equal", 0, before.length, 0, after.length]];
  changes.forEach(([tag, i1, i2, j1, j2], place) => {
    if (tag === "equal") sameLines(table, before, i1, i2, j1, after, place === 0, place === changes.length - 1);
    else for (const [left, right] of pairs(before.slice(i1, i2), after.slice(j1, j2))) table.append(...changed(left, right));
  });
  return table;
}

/** Lines that are the same: the middle of a long run is folded until it is asked for. */
function sameLines(table, before, i1, i2, j1, after, isFirst, isLast) {
  const rows = [];
  for (let k = 0; k < i2 - i1; k++) rows.push([before[i1 + k], after[j1 + k]]);
  const [head, tail] = [isFirst ? 0 : CONTEXT, isLast ? 0 : CONTEXT];
  const whole = isFirst && isLast;
  if (whole || rows.length <= head + tail + 2) {
    for (const [left, right] of rows) table.append(side(left, ""), side(right, "again"));
    return;
  }
  const hidden = rows.slice(head, rows.length - tail);
  for (const [left, right] of rows.slice(0, head)) table.append(side(left, ""), side(right, "again"));
  const button = el("button", { type: "button", className: "fold" }, `⋯ ${hidden.length} lines are the same ⋯`);
  button.addEventListener("click", () => {
    button.replaceWith(...hidden.flatMap(([left, right]) => [side(left, ""), side(right, "again")]));
  });
  table.append(button);
  for (const [left, right] of rows.slice(rows.length - tail)) table.append(side(left, ""), side(right, "again"));
}

/** Lines of a change beside each other where they define the same node. */
function pairs(before, after) {
  const rows = [];
  let next = 0;
  for (const line of after) {
    const name = definedBy(line);
    const place = name ? before.findIndex((other, k) => k >= next && definedBy(other) === name) : -1;
    if (place < 0) {
      rows.push([null, line]);
      continue;
    }
    while (next < place) rows.push([before[next++], null]);
    rows.push([before[next++], line]);
  }
  while (next < before.length) rows.push([before[next++], null]);
  return rows;
}

function definedBy(line) {
  const end = line.indexOf(" = ");
  return end > 0 && !line.startsWith(" ") ? line.slice(0, end) : "";
}

function changed(left, right) {
  const marks = left !== null && right !== null ? differing(left, right) : [null, null];
  return [
    left === null ? el("div", { className: "side none" }) : side(left, "gone", marks[0]),
    right === null ? el("div", { className: "side none" }) : side(right, "new", marks[1]),
  ];
}

/** Where two lines differ: between what they begin and end with alike, [start, end] in each. */
function differing(left, right) {
  let start = 0;
  while (start < left.length && start < right.length && left[start] === right[start]) start++;
  let end = 0;
  const most = Math.min(left.length, right.length) - start;
  while (end < most && left[left.length - 1 - end] === right[right.length - 1 - end]) end++;
  return [
    [start, left.length - end],
    [start, right.length - end],
  ];
}

/** One line: its sign, what it defines, and the value at the right. */
function side(line, kind, mark = null) {
  const name = definedBy(line);
  const [, call, value] = /^(.*?\S)(?: {2,}(\S.*))?$/.exec(line) ?? [null, line, ""];
  const known = name && nodeOf(name);
    return el(
    "div",
    { className: `side ${kind}`, title: known ? "click for details" : "", onclick: () => known && go({ node: name }) },
    el("span", { className: "sign" }, kind === "gone" ? "−" : kind === "new" ? "+" : ""),
    el("code", {}, marked(call, mark)),
    value ? el("span", { className: "value" }, value) : null,
  );
}

function marked(text, mark) {
  if (!mark || mark[0] >= mark[1]) return [text];
  const [start, end] = [Math.min(mark[0], text.length), Math.min(mark[1], text.length)];
  return [text.slice(0, start), el("mark", {}, text.slice(start, end)), text.slice(end)];
}
